/* The web servers' work in "Friendly Virtual Machines", section 5.2, as a CGI
 * program: takes 1 MB of memory, writes and reads it, and answers with a page of
 * 4 KB. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1 << 20, PAGE = 4096, PASSES = 4 };

int main(void)
{
    unsigned char *chunk = malloc(CHUNK);
    if (!chunk)
        return 1;
    unsigned sum = 1;
    memset(chunk, 7, CHUNK);
    for (int pass = 0; pass < PASSES; pass++)
        for (size_t i = 0; i < CHUNK; i++) {
            sum = sum * 31 + chunk[i];
            chunk[i] = (unsigned char)sum;
        }
    free(chunk);
    printf("Content-Type: text/html\r\n\r\n");
    int had = printf("<html><body>%08x", sum);
    for (; had < PAGE - 15; had++)
        putchar('.');
    puts("</body></html>");
    return 0;
}
