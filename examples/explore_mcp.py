#!/usr/bin/env python3
"""explore.py as an agent does it: the same search by tools of the MCP server, with a client of a few lines.

    forkyard run tiny --name p --max-clones 16
    examples/explore_mcp.py p --depth 3 --keep 2 --score 'a command that prints a number' 'one try' 'another'

Messages are JSON-RPC, a line each, on the server's standard input and output. Calls that are sent
together are carried out side by side; answers come as they are ready.
"""

import json
import subprocess

from explore import main


class Server:
    """`forkyard mcp`, as a sandbox that a search can use."""

    def __init__(self):
        self.process = subprocess.Popen(["forkyard", "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.asked = 0
        client = {"name": "explore", "version": "1"}
        self.ask([("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})])
        self.say({"method": "notifications/initialized"})

    def say(self, message):
        print(json.dumps({"jsonrpc": "2.0", **message}), file=self.process.stdin, flush=True)

    def ask(self, requests):
        """Sends requests together; their results, in this order."""
        ids = range(self.asked + 1, self.asked + 1 + len(requests))
        self.asked += len(requests)
        for id, (method, params) in zip(ids, requests):
            self.say({"id": id, "method": method, "params": params})
        answers = {}
        while len(answers) < len(requests):
            line = self.process.stdout.readline()
            if not line:
                raise SystemExit("the MCP server ended")
            answer = json.loads(line)
            if "id" in answer:
                answers[answer["id"]] = answer
        if wrong := [answer["error"] for answer in answers.values() if "error" in answer]:
            raise SystemExit(f"the MCP server refuses: {wrong[0]['message']}")
        return [answers[id]["result"] for id in ids]

    def call(self, tool, calls):
        """Calls a tool several times at once: text that it answers, and whether that is an error."""
        results = self.ask([("tools/call", {"name": tool, "arguments": arguments}) for arguments in calls])
        return [(result["content"][0]["text"], result.get("isError", False)) for result in results]

    def must(self, tool, arguments):
        [(text, failed)] = self.call(tool, [arguments])
        if failed:
            raise SystemExit(f"{tool}: {text}")
        return text

    def fork(self, vm, count):
        clones = json.loads(self.must("fork", {"vm": vm, "count": count}))["clones"]
        if wrong := [clone["error"]["message"] for clone in clones if "error" in clone]:
            self.call("rm", [{"vm": clone["name"]} for clone in clones if "name" in clone])
            raise SystemExit(f"fork: {wrong[0]}")
        return [clone["name"] for clone in clones]

    def remove(self, vm):
        self.must("rm", {"vm": vm})

    def run(self, commands):
        calls = [{"vm": vm, "argv": ["sh", "-c", command]} for vm, command in commands]
        said = [None if failed else json.loads(text) for text, failed in self.call("exec", calls)]
        return [None if ran is None or ran["exit"] != {"code": 0} else ran["stdout"] for ran in said]


if __name__ == "__main__":
    main(Server())
