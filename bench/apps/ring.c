/* A token around the ring of ranks, so often; then a sum that must be right. Options: ROUNDS BYTES, or `die` to have rank 1 exit with 3. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc > 1 && strcmp(argv[1], "die") == 0) {
        if (rank == 1)
            exit(3);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    int rounds = argc > 1 ? atoi(argv[1]) : 10, bytes = argc > 2 ? atoi(argv[2]) : 64;
    char *token = calloc(1, bytes + 8);
    long steps = 0, work = 0;
    for (int round = 0; round < rounds; round++) {
        /* Work for every rank, between the rounds. */
        for (long i = 0; i < 2000000; i++)
            work = work * 6364136223846793005L + rank;
        if (rank == 0) {
            steps++;
            memcpy(token, &steps, 8);
            MPI_Send(token, bytes + 8, MPI_CHAR, 1 % size, 0, MPI_COMM_WORLD);
            MPI_Recv(token, bytes + 8, MPI_CHAR, size - 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            memcpy(&steps, token, 8);
        } else {
            MPI_Recv(token, bytes + 8, MPI_CHAR, rank - 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            memcpy(&steps, token, 8);
            steps++;
            memcpy(token, &steps, 8);
            MPI_Send(token, bytes + 8, MPI_CHAR, (rank + 1) % size, 0, MPI_COMM_WORLD);
        }
    }
    char host[64];
    gethostname(host, sizeof host);
    int sum = 0;
    MPI_Reduce(&rank, &sum, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    printf("rank %d of %d on %s\n", rank, size, host);
    fflush(stdout);
    if (rank == 0) {
        char word[64] = "";
        if (fgets(word, sizeof word, stdin))
            printf("input: %s", word);
        printf("%ld steps, sum %d: %s\n", steps, sum, steps == (long)rounds * size && sum == size * (size - 1) / 2 ? "right" : "WRONG");
        if (work == 42)
            puts("");
    }
    MPI_Finalize();
    return 0;
}
