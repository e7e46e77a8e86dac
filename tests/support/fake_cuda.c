/* A libcuda that pauses processes as the real one does, as far as lowtide asks it to.
 *
 * Each process that holds a GPU has a file FOLDER/PID with its state, 0 to 3, in it. What was asked
 * is written to FOLDER/calls. FOLDER/fails names a call, the number of the time that it fails, and
 * how: `Checkpoint 2 1`; the number 0 stands for every time.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RUNS, LOCKED, LET_GO, BROKEN };

static FILE *in_folder(const char *name, const char *mode) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", getenv("FAKE_CUDA"), name);
  return fopen(path, mode);
}

static FILE *of(int pid, const char *mode) {
  char name[32];
  snprintf(name, sizeof name, "%d", pid);
  return in_folder(name, mode);
}

static int read_state(int pid) {
  int state = -1;
  FILE *file = kill(pid, 0) ? NULL : of(pid, "r");
  if (file) {
    if (fscanf(file, "%d", &state) != 1) state = -1;
    fclose(file);
  }
  return state;
}

static void write_state(int pid, int state) {
  FILE *file = of(pid, "w");
  fprintf(file, "%d\n", state);
  fclose(file);
}

/* The driver's thread within a process does the work: of one that is stopped none does. */
static int is_stopped(int pid) {
  char path[64], word = '?';
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  FILE *file = fopen(path, "r");
  if (file) {
    if (fscanf(file, "%*d %*s %c", &word) != 1) word = '?';
    fclose(file);
  }
  return word == 'T';
}

static int told(const char *call, int pid) {
  char line[128], name[32];
  int count = 0, number, error, failed = 0;
  FILE *file = in_folder("calls", "a+");
  fprintf(file, "%s %d\n", call, pid);
  rewind(file);
  while (fgets(line, sizeof line, file))
    if (!strncmp(line, call, strlen(call)) && line[strlen(call)] == ' ') count++;
  fclose(file);
  if ((file = in_folder("fails", "r"))) {
    while (fscanf(file, "%31s %d %d", name, &number, &error) == 3)
      if (!strcmp(name, call) && (number == 0 || number == count)) failed = error;
    fclose(file);
  }
  return failed;
}

static int change(const char *call, int pid, int from, int to) {
  int error = told(call, pid), state = read_state(pid);
  if (error) return error;
  if (state < 0 || is_stopped(pid)) return 400;
  if (state != from) return 401;
  if (getenv("FAKE_CUDA_TAKES_US")) usleep(atoi(getenv("FAKE_CUDA_TAKES_US")));
  write_state(pid, to);
  return 0;
}

int cuInit(unsigned flags) { return flags ? 1 : told("Init", 0); }
int cuDriverGetVersion(int *version) { return *version = VERSION, 0; }

#if VERSION >= 12080
int cuCheckpointProcessGetState(int pid, int *state) {
  int error = told("GetState", pid), now = read_state(pid);
  if (error || now < 0) return error ? error : 1;
  *state = now;
  return 0;
}
int cuCheckpointProcessLock(int pid, const unsigned *arguments) {
  return arguments && !arguments[0] ? 1 : change("Lock", pid, RUNS, LOCKED);
}
int cuCheckpointProcessCheckpoint(int pid, void *arguments) {
  return arguments ? 1 : change("Checkpoint", pid, LOCKED, LET_GO);
}
int cuCheckpointProcessRestore(int pid, void *arguments) {
  return arguments ? 1 : change("Restore", pid, LET_GO, LOCKED);
}
int cuCheckpointProcessUnlock(int pid, void *arguments) {
  return arguments ? 1 : change("Unlock", pid, LOCKED, RUNS);
}
#endif
