/* A preloaded library under which a process's clocks are as a file says: eight bytes each, in nanoseconds.
   [0] by how much CLOCK_REALTIME is ahead; [1] where it stands still instead, if that is not 0;
   [2] by how much CLOCK_BOOTTIME is ahead. The file is named by REDLATCH_CLOCK. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static volatile int64_t *said;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("REDLATCH_CLOCK");
    int fd = path ? open(path, O_RDONLY) : -1;
    void *seen = fd < 0 ? MAP_FAILED : mmap(NULL, 24, PROT_READ, MAP_SHARED, fd, 0);
    if (seen == MAP_FAILED)
        _exit(97);
    said = seen;
    close(fd);
}

static int64_t shown(clockid_t clock)
{
    struct timespec real;
    syscall(SYS_clock_gettime, clock, &real);
    int64_t now = real.tv_sec * SECOND + real.tv_nsec;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
        return said[1] ? said[1] : now + said[0];
    return clock == CLOCK_BOOTTIME ? now + said[2] : now;
}

int clock_gettime(clockid_t clock, struct timespec *ts)
{
    int64_t now = shown(clock);
    ts->tv_sec = now / SECOND;
    ts->tv_nsec = now % SECOND;
    return 0;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
    int64_t now = shown(CLOCK_REALTIME);
    (void)zone;
    tv->tv_sec = now / SECOND;
    tv->tv_usec = now % SECOND / 1000;
    return 0;
}

time_t time(time_t *where)
{
    time_t now = shown(CLOCK_REALTIME) / SECOND;
    if (where)
        *where = now;
    return now;
}
