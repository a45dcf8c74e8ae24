/* A fake libcuda.so.1 beside the fake libnvidia-ml.so.1: memory, and the driver's calls to suspend a process.
 *
 * What a process holds is a file FAKE_NVML_SCRIPT.cuda/PID, "STATE MIB STAYS LOST", which the fake NVML shows as a
 * process of device 0 as long as it is running or locked, and not while it is checkpointed. The script's lines:
 *
 *   cuda error FUNCTION CODE    cuda hang FUNCTION MS    cuda die FUNCTION
 *   cuda lie                    a checkpoint says that all went well, and the memory stays on the device
 *   cuda forget                 a restore says so, and the memory has lost what it held
 *   cuda hidden                 NVML lists no process, as in a container with process numbers of its own
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define API __attribute__((visibility("default"))) int

enum { SUCCESS = 0, INVALID = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, ILLEGAL_STATE = 401 };
enum { RUNNING = 0, LOCKED = 1, CHECKPOINTED = 2 };
enum { LINE = 512, CONTEXT_MIB = 100, LOOK_US = 5000 };

typedef struct { int state, mib, stays, lost; } Held;

static int opened;

/* Whether the script has such a line; a number that stands behind it. */
static int scripted(const char *start, const char *function, long *number) {
    char line[LINE], wanted[LINE];
    const char *path = getenv("FAKE_NVML_SCRIPT");
    FILE *file = path ? fopen(path, "r") : NULL;
    int found = 0;
    snprintf(wanted, sizeof wanted, "%s%s%s", start, *function ? " " : "", function);
    while (file && !found && fgets(line, sizeof line, file)) {
        size_t size = strlen(wanted);
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, wanted, size) || (line[size] && line[size] != ' ')) continue;
        found = 1;
        if (number) *number = atol(line + size);
    }
    if (file) fclose(file);
    return found;
}

static int scripted_code(const char *function) {
    long number = 0;
    if (scripted("cuda hang", function, &number)) usleep(number * 1000);
    if (scripted("cuda die", function, NULL)) abort();
    if (scripted("cuda error", function, &number)) return number;
    return -1;
}

#define CALL() do { int code = scripted_code(__func__); if (code >= 0) return code; if (!opened) return NOT_INITIALIZED; } while (0)

static void path_of(int pid, char *path, const char *end) {
    snprintf(path, LINE, "%s.cuda", getenv("FAKE_NVML_SCRIPT"));
    mkdir(path, 0777);
    snprintf(path, LINE, "%s.cuda/%d%s", getenv("FAKE_NVML_SCRIPT"), pid, end);
}

static int read_held(int pid, Held *held) {
    char path[LINE];
    path_of(pid, path, "");
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    int count = fscanf(file, "%d %d %d %d", &held->state, &held->mib, &held->stays, &held->lost);
    fclose(file);
    return count == 4;
}

static void write_held(int pid, const Held *held) {
    char path[LINE], new[LINE];
    path_of(pid, path, "");
    path_of(pid, new, ".new");
    FILE *file = fopen(new, "w");
    fprintf(file, "%d %d %d %d\n", held->state, held->mib, held->stays, held->lost);
    fclose(file);
    rename(new, path);
}

/* Like the driver: a call waits here for as long as its process is locked or suspended. */
static Held own(void) {
    Held held = {RUNNING, 0, 0, 0};
    while (read_held(getpid(), &held) && held.state != RUNNING) usleep(LOOK_US);
    return held;
}

API cuInit(unsigned flags) {
    int code = scripted_code(__func__);
    (void)flags;
    if (code >= 0) return code;
    if (!getenv("FAKE_NVML_SCRIPT") || !scripted("system driver", "", NULL)) return NO_DEVICE;
    opened = 1;
    return SUCCESS;
}

API cuDeviceGet(int *device, int index) {
    CALL();
    *device = index;
    return index || !scripted("0 uuid", "", NULL) ? NO_DEVICE : SUCCESS;
}

API cuDevicePrimaryCtxRetain(void **context, int device) {
    CALL();
    Held held = own();
    (void)device;
    held.mib += CONTEXT_MIB;
    write_held(getpid(), &held);
    *context = &opened;
    return SUCCESS;
}

API cuCtxSetCurrent(void *context) { CALL(); (void)context; return SUCCESS; }
API cuCtxSynchronize(void) { CALL(); own(); return SUCCESS; }

API cuMemAlloc_v2(uint64_t *memory, size_t size) {
    CALL();
    Held held = own();
    *memory = (uint64_t)(uintptr_t)calloc(size, 1);
    held.mib += size >> 20;
    write_held(getpid(), &held);
    return SUCCESS;
}

API cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) {
    CALL();
    own();
    memcpy((void *)(uintptr_t)to, from, size);
    return SUCCESS;
}

API cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) {
    CALL();
    Held held = own();
    if (held.lost) memset(to, 0, size);
    else memcpy(to, (void *)(uintptr_t)from, size);
    return SUCCESS;
}

API cuMemsetD32_v2(uint64_t to, unsigned value, size_t count) {
    CALL();
    own();
    for (size_t i = 0; i < count; i++) ((uint32_t *)(uintptr_t)to)[i] = value;
    return SUCCESS;
}

#ifndef OLD
/* --- suspending a process (driver 570) ---------------------------------------------------------------------------- */
static int moved(int pid, int from, int to) {
    Held held;
    if (!read_held(pid, &held)) return INVALID;
    if (held.state != from) return ILLEGAL_STATE;
    held.state = to;
    held.stays = to == CHECKPOINTED && scripted("cuda lie", "", NULL);
    held.lost |= from == CHECKPOINTED && scripted("cuda forget", "", NULL);
    write_held(pid, &held);
    return SUCCESS;
}

API cuCheckpointProcessGetState(int pid, int *state) {
    Held held;
    CALL();
    if (!read_held(pid, &held)) return INVALID;
    *state = held.state;
    return SUCCESS;
}

API cuCheckpointProcessLock(int pid, const unsigned *args) { CALL(); return args && *args ? moved(pid, RUNNING, LOCKED) : INVALID; }
API cuCheckpointProcessCheckpoint(int pid, void *args) { CALL(); (void)args; return moved(pid, LOCKED, CHECKPOINTED); }
API cuCheckpointProcessRestore(int pid, void *args) { CALL(); (void)args; return moved(pid, CHECKPOINTED, LOCKED); }
API cuCheckpointProcessUnlock(int pid, void *args) { CALL(); (void)args; return moved(pid, LOCKED, RUNNING); }
#endif
