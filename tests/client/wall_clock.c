// A wall clock that jumps: loaded before the C library (LD_PRELOAD), it adds the seconds in the file WALL_CLOCK_FILE, an int64.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static int (*real)(clockid_t, struct timespec *);
static volatile int64_t none, *ahead = &none;

__attribute__((constructor)) static void begin(void) {
  real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  const char *path = getenv("WALL_CLOCK_FILE");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  void *found = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
  if (found != MAP_FAILED) ahead = found;
}

int clock_gettime(clockid_t clock, struct timespec *told) {
  if (!real) begin();
  int failed = real(clock, told);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) told->tv_sec += *ahead;
  return failed;
}
