// Writes src/generated.ts: the types of the API, made of its description by openapi-typescript.
//
//     npm run generate               write it
//     npm run generate -- --check    fail if it is not what the description says
import { readFile, writeFile } from "node:fs/promises";
import openapiTS, { astToString } from "openapi-typescript";

const description = new URL("../openapi.json", import.meta.url);
const place = new URL("src/generated.ts", import.meta.url);
const head = `// Made of sdk/openapi.json by \`npm run generate\`: do not edit.\n\n`;

const api = JSON.parse(await readFile(description, "utf8"));
for (const route of Object.values(api.paths)) {
  for (const operation of Object.values(route)) {
    // Every refusal is an ApiError; told at each route they are three quarters of the file.
    for (const status of Object.keys(operation.responses ?? {})) {
      if (status >= "400") delete operation.responses[status];
    }
  }
}
const types = await openapiTS(api, { rootTypes: true, rootTypesNoSchemaPrefix: true, alphabetize: true });
const made = head + astToString(types);

if (process.argv.includes("--check")) {
  if ((await readFile(place, "utf8")) !== made) {
    console.error("src/generated.ts is not what sdk/openapi.json says: run `npm run generate`");
    process.exit(1);
  }
} else {
  await writeFile(place, made);
}
