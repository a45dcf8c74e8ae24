/* A fake libnvidia-ml.so.1, scripted by a text file that every call reads anew; the real nvidia-ml-py loads it.
 *
 * The file is named by FAKE_NVML_SCRIPT; without it there is no driver. A line is "SCOPE KEY VALUES", and the scope is
 * "system", a device ("0") or a MIG instance ("0/1"):
 *
 *   system driver 615.71           0 uuid GPU-a             0 memory 81920 2048 (MiB: total, used)
 *   system error FUNCTION CODE     0 name NVIDIA H200       0 percent 37
 *   system hang FUNCTION MS        0 error FUNCTION CODE    0 temperature 45     0 power 300000 (mW)
 *   system die FUNCTION            0 ecc 2                  0 remap 1            0 recovery 1
 *   system limits ok | lie | half  0 mig 1                  0 xid 79 (reported once)
 *   0 process PID MIB PERCENT [compute | graphics | mps]    "-" for memory: not available, for percent: no sample
 *   0/1 gpm METRIC VALUE [CODE]                             a performance metric of an instance between two samples
 *   0/1 gpu-instance NUMBER                                 another one than that of its place, counted from 1
 *   0 sample PID MICROSECONDS SM MEMORY ENCODER DECODER     one more sample, with a time of its own
 *
 * Whatever has no line answers "not supported". Structures and codes are those of nvml.h, as nvidia-ml-py has them.
 */
#include <dirent.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default"))) int

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, NO_DRIVER = 9, TIMEOUT = 10 };
enum { DEVICES = 64, INSTANCES = 8, LIMITS = 256, LINE = 512 };
static const uint64_t MIB = 1 << 20, UNSET = UINT64_MAX;

typedef struct { int device, instance; } Handle; /* instance -1: the device itself */
typedef struct { uint64_t total, free, used; } Memory;
typedef struct { uint32_t version; uint64_t total, reserved, free, used; } MemoryV2;
typedef struct { uint32_t gpu, memory; } Rates;
typedef struct { uint32_t pid; uint64_t memory; uint32_t gpu_instance, compute_instance; } Process;
typedef struct { uint32_t pid; uint64_t at; uint32_t sm, memory, encoder, decoder; } Sample;
typedef struct { Handle *device; uint64_t type, data; uint32_t gpu_instance, compute_instance; } Event;
typedef struct { uint32_t field, scope; int64_t at, latency; uint32_t type; int result; union { double d; uint32_t ui; uint64_t ull; } value; } Field;
typedef struct { const char *name; uint64_t soft, hard; } SetLimits;
typedef struct { const char *name; uint64_t soft, hard, used; } GetLimits;

static Handle handles[DEVICES][INSTANCES + 1];
static int opened, reported_events, watched[DEVICES];
static struct { int device; char name[LINE]; uint64_t soft, hard; } limits[LIMITS];
static int limit_count;

/* The script as it is now, read again whenever another file has its name; NULL if there is none. */
static const char *script(void) {
    static char *read;
    static struct stat seen;
    const char *path = getenv("FAKE_NVML_SCRIPT");
    struct stat now;
    if (!path || stat(path, &now)) return NULL;
    if (read && now.st_ino == seen.st_ino && now.st_size == seen.st_size && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec) return read;
    FILE *file = fopen(path, "r");
    if (!file) return NULL;
    read = realloc(read, now.st_size + 1);
    read[fread(read, 1, now.st_size, file)] = 0;
    fclose(file);
    seen = now;
    return read;
}

/* The nth line of a scope and key, its values copied to `values`; 0 if there is none. */
static int line_of(const char *scope, const char *key, int nth, char *values) {
    char start[LINE];
    const char *next;
    size_t length = snprintf(start, sizeof start, "%s %s", scope, key);
    for (const char *line = script(); line && *line; line = next) {
        size_t size = strcspn(line, "\n");
        next = line + size + (line[size] == '\n');
        if (size < length || strncmp(line, start, length) || (size > length && line[length] != ' ') || nth-- > 0) continue;
        snprintf(values, LINE, "%.*s", size > length ? (int)(size - length - 1) : 0, line + length + 1);
        return 1;
    }
    return 0;
}

static void scope_of(const Handle *of, char *scope) {
    if (of->instance < 0) snprintf(scope, LINE, "%d", of->device);
    else snprintf(scope, LINE, "%d/%d", of->device, of->instance);
}

static int value_of(const Handle *of, const char *key, char *values) {
    char scope[LINE];
    scope_of(of, scope);
    return line_of(scope, key, 0, values);
}

static int count_of(const char *scope, const char *key) {
    char values[LINE];
    int count = 0;
    while (line_of(scope, key, count, values)) count++;
    return count;
}

/* What the script wants of a function: to hang, to die, or to answer with a code; -1 if it may do its work. */
static int scripted_code(const char *scope, const char *function) {
    char values[LINE], name[LINE];
    long number;
    for (int i = 0; line_of(scope, "hang", i, values); i++)
        if (sscanf(values, "%511s %ld", name, &number) == 2 && !strcmp(name, function)) usleep(number * 1000);
    for (int i = 0; line_of(scope, "die", i, values); i++)
        if (!strcmp(values, function)) abort();
    for (int i = 0; line_of(scope, "error", i, values); i++)
        if (sscanf(values, "%511s %ld", name, &number) == 2 && !strcmp(name, function)) return number;
    return -1;
}

static int system_code(const char *function) {
    char values[LINE];
    int code = scripted_code("system", function);
    if (code >= 0) return code;
    return line_of("system", "driver", 0, values) ? (opened ? -1 : UNINITIALIZED) : NO_DRIVER;
}

static int device_code(const Handle *of, const char *function) {
    char scope[LINE];
    int code = system_code(function);
    if (code >= 0) return code;
    if (!of) return INVALID;
    scope_of(of, scope);
    return scripted_code(scope, function);
}

#define SYSTEM() do { int code = system_code(__func__); if (code >= 0) return code; } while (0)
#define DEVICE(of) do { int code = device_code(of, __func__); if (code >= 0) return code; } while (0)

API nvmlInitWithFlags(uint32_t flags) {
    char values[LINE];
    int code = scripted_code("system", __func__);
    (void)flags;
    if (code >= 0) return code;
    if (!line_of("system", "driver", 0, values)) return NO_DRIVER;
    opened = 1;
    return SUCCESS;
}

API nvmlShutdown(void) {
    opened = 0;
    return SUCCESS;
}

API nvmlSystemGetDriverVersion(char *version, uint32_t length) {
    char values[LINE];
    SYSTEM();
    line_of("system", "driver", 0, values);
    snprintf(version, length, "%s", values);
    return SUCCESS;
}

API nvmlDeviceGetCount_v2(uint32_t *count) {
    char scope[LINE], values[LINE];
    SYSTEM();
    for (*count = 0; *count < DEVICES; ++*count) {
        snprintf(scope, sizeof scope, "%u", *count);
        if (!line_of(scope, "uuid", 0, values)) break;
    }
    return SUCCESS;
}

API nvmlDeviceGetHandleByIndex_v2(uint32_t index, Handle **handle) {
    Handle *of;
    if (index >= DEVICES) return INVALID;
    of = &handles[index][INSTANCES];
    *of = (Handle){index, -1};
    DEVICE(of);
    *handle = of;
    return SUCCESS;
}

static int text(const Handle *of, const char *key, char *buffer, uint32_t length) {
    char values[LINE];
    if (!value_of(of, key, values)) return NOT_SUPPORTED;
    snprintf(buffer, length, "%s", values);
    return SUCCESS;
}

static int number(const Handle *of, const char *key, uint32_t *value) {
    char values[LINE];
    if (!value_of(of, key, values)) return NOT_SUPPORTED;
    *value = strtoul(values, NULL, 10);
    return SUCCESS;
}

API nvmlDeviceGetUUID(Handle *of, char *buffer, uint32_t length) { DEVICE(of); return text(of, "uuid", buffer, length); }
API nvmlDeviceGetName(Handle *of, char *buffer, uint32_t length) { DEVICE(of); return text(of, "name", buffer, length); }
API nvmlDeviceGetPowerUsage(Handle *of, uint32_t *value) { DEVICE(of); return number(of, "power", value); }

API nvmlDeviceGetTemperature(Handle *of, uint32_t sensor, uint32_t *value) {
    (void)sensor;
    DEVICE(of);
    return number(of, "temperature", value);
}

API nvmlDeviceGetUtilizationRates(Handle *of, Rates *rates) {
    DEVICE(of);
    rates->memory = 0;
    return number(of, "percent", &rates->gpu);
}

static uint64_t cuda_mib(const Handle *of);

API nvmlDeviceGetMemoryInfo_v2(Handle *of, MemoryV2 *memory) {
    char values[LINE];
    DEVICE(of);
    if (!value_of(of, "memory", values) || sscanf(values, "%lu %lu", &memory->total, &memory->used) != 2) return NOT_SUPPORTED;
    memory->used += cuda_mib(of);
    memory->total *= MIB, memory->used *= MIB, memory->reserved = 0, memory->free = memory->total - memory->used;
    return SUCCESS;
}

API nvmlDeviceGetMemoryInfo(Handle *of, Memory *memory) {
    MemoryV2 found;
    DEVICE(of);
    int code = nvmlDeviceGetMemoryInfo_v2(of, &found);
    *memory = (Memory){found.total, found.free, found.used};
    return code;
}

/* --- what processes have by the fake libcuda.so.1 ------------------------------------------------------------------ */
static int held_by(int pid) {
    char path[LINE];
    int state = 2, mib = 0, stays = 0, read = 0;
    snprintf(path, sizeof path, "%s.cuda/%d", getenv("FAKE_NVML_SCRIPT"), pid);
    FILE *file = kill(pid, 0) ? NULL : fopen(path, "r");
    if (file) read = fscanf(file, "%d %d %d", &state, &mib, &stays), fclose(file);
    return read == 3 && (state < 2 || stays) ? mib : 0;
}

/* The next process of the first device that has memory by it; 0 at the end. */
static int next_of(DIR *folder, int *mib) {
    for (struct dirent *entry; (entry = readdir(folder));)
        if (!strchr(entry->d_name, '.') && (*mib = held_by(atoi(entry->d_name)))) return atoi(entry->d_name);
    return 0;
}

static DIR *cuda_of(const Handle *of) {
    char path[LINE];
    snprintf(path, sizeof path, "%s.cuda", getenv("FAKE_NVML_SCRIPT"));
    return of->device || of->instance >= 0 ? NULL : opendir(path);
}

static uint64_t cuda_mib(const Handle *of) {
    DIR *folder = cuda_of(of);
    uint64_t sum = 0;
    for (int mib; folder && next_of(folder, &mib);) sum += mib;
    if (folder) closedir(folder);
    return sum;
}

/* --- processes ---------------------------------------------------------------------------------------------------- */
static int processes(const Handle *of, const char *kind, uint32_t *count, Process *found) {
    char scope[LINE], values[LINE], memory[LINE], percent[LINE], is[LINE];
    uint32_t room = found ? *count : 0, pid, seen = 0;
    scope_of(of, scope);
    for (int i = 0; line_of(scope, "process", i, values); i++) {
        strcpy(is, "compute");
        if (sscanf(values, "%u %511s %511s %511s", &pid, memory, percent, is) < 3 || strcmp(is, kind)) continue;
        if (seen < room) found[seen] = (Process){pid, *memory == '-' ? UNSET : strtoull(memory, NULL, 10) * MIB, -1, -1};
        seen++;
    }
    DIR *folder = strcmp(kind, "compute") || line_of("cuda", "hidden", 0, values) ? NULL : cuda_of(of);
    for (int mib, with; folder && (with = next_of(folder, &mib)); seen++)
        if (seen < room) found[seen] = (Process){with, mib * MIB, -1, -1};
    if (folder) closedir(folder);
    *count = seen;
    return seen > room ? TOO_SMALL : SUCCESS;
}

API nvmlDeviceGetComputeRunningProcesses_v3(Handle *of, uint32_t *count, Process *found) { DEVICE(of); return processes(of, "compute", count, found); }
API nvmlDeviceGetGraphicsRunningProcesses_v3(Handle *of, uint32_t *count, Process *found) { DEVICE(of); return processes(of, "graphics", count, found); }
API nvmlDeviceGetMPSComputeRunningProcesses_v3(Handle *of, uint32_t *count, Process *found) { DEVICE(of); return processes(of, "mps", count, found); }

static uint64_t microseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1000000ull + now.tv_nsec / 1000;
}

API nvmlDeviceGetProcessUtilization(Handle *of, Sample *found, uint32_t *count, uint64_t since) {
    char scope[LINE], values[LINE], memory[LINE], percent[LINE];
    uint32_t room = found ? *count : 0, seen = 0;
    Sample one = {0};
    DEVICE(of);
    scope_of(of, scope);
    for (int i = 0; line_of(scope, "process", i, values); i++) {
        if (sscanf(values, "%u %511s %511s", &one.pid, memory, percent) < 3 || *percent == '-') continue;
        one.at = microseconds(), one.sm = strtoul(percent, NULL, 10);
        if (one.at > since && seen++ < room) found[seen - 1] = one;
    }
    for (int i = 0; line_of(scope, "sample", i, values); i++) {
        if (sscanf(values, "%u %lu %u %u %u %u", &one.pid, &one.at, &one.sm, &one.memory, &one.encoder, &one.decoder) < 6) continue;
        if (one.at > since && seen++ < room) found[seen - 1] = one;
    }
    *count = seen;
    return !seen ? NOT_FOUND : seen > room ? TOO_SMALL : SUCCESS;
}

/* --- health ------------------------------------------------------------------------------------------------------- */
API nvmlDeviceGetTotalEccErrors(Handle *of, uint32_t type, uint32_t counter, uint64_t *count) {
    uint32_t found = 0;
    (void)type, (void)counter;
    DEVICE(of);
    int code = number(of, "ecc", &found);
    *count = found;
    return code;
}

API nvmlDeviceGetRemappedRows(Handle *of, uint32_t *correctable, uint32_t *uncorrectable, uint32_t *pending, uint32_t *failed) {
    DEVICE(of);
    *correctable = *uncorrectable = *pending = 0;
    return number(of, "remap", failed);
}

API nvmlDeviceGetFieldValues(Handle *of, int count, Field *fields) {
    DEVICE(of);
    for (int i = 0; i < count; i++) {
        fields[i].type = 1;
        fields[i].result = fields[i].field == 230 ? number(of, "recovery", &fields[i].value.ui) : NOT_SUPPORTED;
    }
    return SUCCESS;
}

API nvmlEventSetCreate(void **set) {
    SYSTEM();
    *set = watched;
    reported_events = 0;
    memset(watched, 0, sizeof watched);
    return SUCCESS;
}

API nvmlEventSetFree(void *set) {
    (void)set;
    return SUCCESS;
}

API nvmlDeviceRegisterEvents(Handle *of, uint64_t types, void *set) {
    (void)types, (void)set;
    DEVICE(of);
    watched[of->device] = 1;
    return SUCCESS;
}

API nvmlEventSetWait_v2(void *set, Event *event, uint32_t timeout_ms) {
    char scope[LINE], values[LINE];
    int before = 0;
    (void)set;
    SYSTEM();
    for (int device = 0; device < DEVICES; device++) {
        snprintf(scope, sizeof scope, "%d", device);
        int here = watched[device] ? count_of(scope, "xid") : 0;
        if (reported_events < before + here) {
            line_of(scope, "xid", reported_events++ - before, values);
            *event = (Event){&handles[device][INSTANCES], 8, strtoull(values, NULL, 10), -1, -1};
            return SUCCESS;
        }
        before += here;
    }
    usleep(timeout_ms * 1000);
    return TIMEOUT;
}

/* --- MIG ---------------------------------------------------------------------------------------------------------- */
API nvmlDeviceGetMigMode(Handle *of, uint32_t *current, uint32_t *pending) {
    DEVICE(of);
    int code = number(of, "mig", current);
    *pending = *current;
    return code;
}

API nvmlDeviceGetMaxMigDeviceCount(Handle *of, uint32_t *count) {
    DEVICE(of);
    *count = INSTANCES - 1;
    return SUCCESS;
}

API nvmlDeviceGetHandleByUUID(const char *uuid, Handle **handle) {
    char scope[LINE], values[LINE];
    SYSTEM();
    for (int device = 0; device < DEVICES; device++)
        for (int place = -1; place < INSTANCES; place++) {
            if (place < 0) snprintf(scope, sizeof scope, "%d", device);
            else snprintf(scope, sizeof scope, "%d/%d", device, place);
            if (!line_of(scope, "uuid", 0, values) || strcmp(values, uuid)) continue;
            *handle = &handles[device][place < 0 ? INSTANCES : place];
            **handle = (Handle){device, place};
            DEVICE(*handle);
            return SUCCESS;
        }
    return NOT_FOUND;
}

API nvmlDeviceGetMigDeviceHandleByIndex(Handle *of, uint32_t index, Handle **handle) {
    char values[LINE];
    DEVICE(of);
    if (index >= INSTANCES) return INVALID;
    *handle = &handles[of->device][index];
    **handle = (Handle){of->device, index};
    return value_of(*handle, "uuid", values) ? SUCCESS : NOT_FOUND;
}

typedef struct { int device, instance; } GpmSample;
typedef struct { uint32_t id; int result; double value; const char *names[3]; } GpmMetric;
typedef struct { uint32_t version, count; GpmSample *before, *now; GpmMetric metrics[]; } GpmQuery;

API nvmlDeviceGetGpuInstanceId(Handle *of, uint32_t *id) {
    DEVICE(of);
    if (number(of, "gpu-instance", id) != SUCCESS) *id = of->instance + 1;
    return SUCCESS;
}

API nvmlGpmSampleAlloc(GpmSample **sample) {
    SYSTEM();
    *sample = calloc(1, sizeof **sample);
    return SUCCESS;
}

API nvmlGpmSampleFree(GpmSample *sample) {
    free(sample);
    return SUCCESS;
}

API nvmlGpmMigSampleGet(Handle *of, uint32_t id, GpmSample *sample) {
    char scope[LINE], values[LINE];
    DEVICE(of);
    *sample = (GpmSample){of->device, id - 1};
    scope_of(&handles[of->device][id - 1], scope);
    int code = scripted_code(scope, __func__);
    return code >= 0 ? code : line_of(scope, "gpm", 0, values) ? SUCCESS : NOT_SUPPORTED;
}

API nvmlGpmMetricsGet(GpmQuery *query) {
    char scope[LINE], values[LINE];
    SYSTEM();
    if (query->version != 1 || query->before->instance != query->now->instance) return INVALID;
    scope_of(&handles[query->now->device][query->now->instance], scope);
    for (uint32_t i = 0; i < query->count; i++) {
        query->metrics[i].result = NOT_SUPPORTED;
        for (int line = 0; line_of(scope, "gpm", line, values); line++) {
            uint32_t id;
            int code = SUCCESS;
            double value;
            if (sscanf(values, "%u %lf %d", &id, &value, &code) < 2 || id != query->metrics[i].id) continue;
            query->metrics[i].result = code, query->metrics[i].value = value;
        }
    }
    return SUCCESS;
}

/* --- memory limits of a control group (driver 615) ------------------------------------------------------------------
 * They outlast a process, as those of a driver do: in a file beside the script, named FAKE_NVML_SCRIPT.limits, by lines
 * "DEVICE SOFT HARD NAME". "lie": a set limit is forgotten; "half": only half of it is set. */
static void reload(void) {
    char path[LINE];
    limit_count = 0;
    snprintf(path, sizeof path, "%s.limits", getenv("FAKE_NVML_SCRIPT"));
    FILE *file = fopen(path, "r");
    if (!file) return;
    while (limit_count < LIMITS && fscanf(file, "%d %lu %lu %511s", &limits[limit_count].device, &limits[limit_count].soft, &limits[limit_count].hard, limits[limit_count].name) == 4) limit_count++;
    fclose(file);
}

static void keep(void) {
    char path[LINE];
    snprintf(path, sizeof path, "%s.limits", getenv("FAKE_NVML_SCRIPT"));
    FILE *file = fopen(path, "w");
    if (!file) return;
    for (int i = 0; i < limit_count; i++) fprintf(file, "%d %lu %lu %s\n", limits[i].device, limits[i].soft, limits[i].hard, limits[i].name);
    fclose(file);
}

static int limit_of(int device, const char *name) {
    for (int i = 0; i < limit_count; i++)
        if (limits[i].device == device && !strcmp(limits[i].name, name)) return i;
    return -1;
}

API nvmlDeviceSetMemoryLimits_v1(Handle *of, SetLimits *wanted) {
    char mode[LINE];
    DEVICE(of);
    if (!line_of("system", "limits", 0, mode)) return NOT_SUPPORTED;
    if (!strcmp(mode, "lie")) return SUCCESS;
    if (of->instance >= 0) return NOT_SUPPORTED;
    reload();
    int place = limit_of(of->device, wanted->name);
    if (place < 0 && limit_count == LIMITS) return INVALID;
    if (place < 0) place = limit_count++;
    int parts = strcmp(mode, "half") ? 1 : 2;
    limits[place].device = of->device, limits[place].soft = wanted->soft / parts;
    limits[place].hard = wanted->hard == UNSET ? UNSET : wanted->hard / parts;
    snprintf(limits[place].name, LINE, "%s", wanted->name);
    keep();
    return SUCCESS;
}

API nvmlDeviceGetMemoryLimits_v1(Handle *of, GetLimits *found) {
    char mode[LINE];
    DEVICE(of);
    if (!line_of("system", "limits", 0, mode)) return NOT_SUPPORTED;
    reload();
    int place = limit_of(of->device, found->name);
    found->soft = place < 0 ? 0 : limits[place].soft, found->hard = place < 0 ? UNSET : limits[place].hard;
    found->used = 0;
    return SUCCESS;
}
