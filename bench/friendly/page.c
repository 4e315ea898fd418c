/* The web servers' work in "Friendly Virtual Machines", section 5.2, as a CGI
 * program: takes 1 MB of memory, writes and reads it, and answers with a page of
 * 4 KB. It reads so often that it takes a while: a server starts such programs one
 * after the other, and were each done before the next begins, memory for a few would
 * do however many ask. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { CHUNK = 1 << 20, WORDS = CHUNK / sizeof(uint64_t), PAGE = 4096, PASSES = 400 };

int main(void)
{
    /* What is written is to be in memory, and read from there. */
    volatile uint64_t *chunk = malloc(CHUNK);
    if (!chunk)
        return 1;
    uint64_t sum = 0;
    for (size_t i = 0; i < WORDS; i++)
        chunk[i] = i;
    for (int pass = 0; pass < PASSES; pass++)
        for (size_t i = 0; i < WORDS; i++)
            sum += chunk[i];
    free((void *)chunk);
    static char page[PAGE + 1];
    int had = snprintf(page, sizeof page, "Content-Type: text/html\r\n\r\n<html><body>%016llx", (unsigned long long)sum);
    for (; had < PAGE - 15; had++)
        page[had] = '.';
    snprintf(page + had, sizeof page - had, "</body></html>\n");
    return fputs(page, stdout) < 0;
}
