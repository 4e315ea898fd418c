/* Microseconds that a message takes between two ranks: half of a round trip, as in the OSU benchmarks. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    int rank, rounds = argc > 1 ? atoi(argv[1]) : 100;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    char *message = calloc(1, 1 << 16);
    for (int bytes = 8; bytes <= 1 << 16; bytes *= 16) {
        double begun = 0;
        for (int round = -10; round < rounds; round++) {
            if (round == 0)
                begun = MPI_Wtime();
            if (rank == 0) {
                MPI_Send(message, bytes, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
                MPI_Recv(message, bytes, MPI_CHAR, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            } else if (rank == 1) {
                MPI_Recv(message, bytes, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                MPI_Send(message, bytes, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
            }
        }
        if (rank == 0) {
            printf("latency %d %.0f\n", bytes, (MPI_Wtime() - begun) / rounds / 2 * 1e6);
            fflush(stdout);
        }
    }
    MPI_Finalize();
    return 0;
}
