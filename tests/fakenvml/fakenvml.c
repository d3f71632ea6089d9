/* A fake libnvidia-ml.so.1: the real pynvml runs over it, without a GPU and without a driver.
 *
 * What it shows stands in the text file named by FAKE_NVML_STATE, one `key=value` a line, read anew at every call, so a
 * test changes the world while the code under test runs:
 *
 *     init=9                          nvmlInit returns this error
 *     count=2                         number of GPUs; count.error=999 makes counting fail
 *     0.temperature=64                one figure of GPU 0; a figure that is not there is NOT_SUPPORTED
 *     0.error=15                      every call for GPU 0 returns this error
 *     0.error.nvmlDeviceGetName=4     only this function does
 *     0.hang.nvmlDeviceGetName=1      this function never returns, as in a driver that hangs
 *     0.crash.nvmlDeviceGetName=1     this function takes the process down
 *     0.processes=1234:1073741824,77:hidden
 *     0.slices=2                      MIG devices of GPU 0; figures of a slice: 0.slice1.memory_used=...
 *
 * Xid events: each line `gpu xid` appended to the file named by FAKE_NVML_EVENTS is delivered once.
 *
 * Built with -DOLD_DRIVER it lacks the functions that came late, as an old driver does.
 */
#define _DEFAULT_SOURCE /* strsep */
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    VERSION_MISMATCH = 25,
};
enum { MAX_GPUS = 16, MAX_SLICES = 7, WHOLE_GPU = -1 };

typedef unsigned int u32;
typedef unsigned long long u64;
typedef struct {
    int gpu;
    int slice;
} Device;

static Device gpus[MAX_GPUS];
static Device slices[MAX_GPUS][MAX_SLICES];
static int initialised;

/* ---- the state file */

static int lookup(const char *key, char *value, size_t size) {
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[1024];
    int found = 0;

    if (!file)
        return 0;
    while (!found && fgets(line, sizeof line, file)) {
        char *equals = strchr(line, '=');
        line[strcspn(line, "\n")] = 0;
        if (!equals)
            continue;
        *equals = 0;
        if (strcmp(line, key) == 0) {
            snprintf(value, size, "%s", equals + 1);
            found = 1;
        }
    }
    fclose(file);
    return found;
}

/* Reads a number; `fallback` when the key is not there. */
static u64 number_or(u64 fallback, const char *format, ...) {
    char key[128], value[256];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(key, sizeof key, format, arguments);
    va_end(arguments);
    return lookup(key, value, sizeof value) ? strtoull(value, NULL, 0) : fallback;
}

/* Reads one figure of a device; NOT_SUPPORTED when the state does not have it. */
static int figure(const Device *device, const char *name, u64 *value) {
    char key[128], text[256];

    if (device->slice == WHOLE_GPU)
        snprintf(key, sizeof key, "%d.%s", device->gpu, name);
    else
        snprintf(key, sizeof key, "%d.slice%d.%s", device->gpu, device->slice, name);
    if (!lookup(key, text, sizeof text))
        return NOT_SUPPORTED;
    *value = strtoull(text, NULL, 0);
    return SUCCESS;
}

/* What every call for a device does first: hang, crash or fail if it is told to. */
static int enter(const Device *device, const char *function) {
    if (!initialised)
        return UNINITIALIZED;
    if (!device)
        return INVALID_ARGUMENT;
    if (number_or(0, "%d.crash.%s", device->gpu, function))
        abort();
    while (number_or(0, "%d.hang.%s", device->gpu, function))
        pause();
    int error = (int)number_or(0, "%d.error.%s", device->gpu, function);
    return error ? error : (int)number_or(0, "%d.error", device->gpu);
}

#define ENTER(device)                                                                                                  \
    do {                                                                                                               \
        int error_ = enter(device, __func__);                                                                          \
        if (error_)                                                                                                    \
            return error_;                                                                                             \
    } while (0)

/* Defines a function that gives one figure as u32 or u64. */
#define GET(function, type, name)                                                                                      \
    int function(Device *device, type *out) {                                                                          \
        u64 value = 0;                                                                                                 \
        ENTER(device);                                                                                                 \
        int result = figure(device, name, &value);                                                                     \
        *out = (type)value;                                                                                            \
        return result;                                                                                                 \
    }

/* ---- the library as a whole */

int nvmlInitWithFlags(u32 flags) {
    (void)flags;
    int error = (int)number_or(0, "init");
    if (error)
        return error;
    for (int gpu = 0; gpu < MAX_GPUS; gpu++) {
        gpus[gpu] = (Device){gpu, WHOLE_GPU};
        for (int slice = 0; slice < MAX_SLICES; slice++)
            slices[gpu][slice] = (Device){gpu, slice};
    }
    initialised = 1;
    return SUCCESS;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

const char *nvmlErrorString(int error) {
    switch (error) {
    case NOT_SUPPORTED:
        return "Not Supported";
    case 4:
        return "Insufficient Permissions";
    case 9:
        return "Driver Not Loaded";
    case 15:
        return "GPU is lost";
    case 18:
        return "Driver/library version mismatch";
    default:
        return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *out, u32 size) {
    snprintf(out, size, "580.65.06");
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(u32 *count) {
    if (!initialised)
        return UNINITIALIZED;
    *count = (u32)number_or(0, "count");
    return (int)number_or(0, "count.error");
}

/* ---- identity of a device */

int nvmlDeviceGetHandleByIndex_v2(u32 index, Device **out) {
    u32 count;
    int error = nvmlDeviceGetCount_v2(&count);

    if (error)
        return error;
    if (index >= count)
        return INVALID_ARGUMENT;
    ENTER(&gpus[index]);
    *out = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetName(Device *device, char *out, u32 size) {
    ENTER(device);
    snprintf(out, size, "NVIDIA H100 80GB HBM3");
    return SUCCESS;
}

int nvmlDeviceGetUUID(Device *device, char *out, u32 size) {
    ENTER(device);
    if (device->slice == WHOLE_GPU)
        snprintf(out, size, "GPU-0000000%llu", number_or((u64)device->gpu, "%d.serial", device->gpu));
    else
        snprintf(out, size, "MIG-0000000%d-%d", device->gpu, device->slice);
    return SUCCESS;
}

typedef struct {
    char bus_id_legacy[16];
    u32 domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} Pci;

int nvmlDeviceGetPciInfo_v3(Device *device, Pci *out) {
    ENTER(device);
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", 0x10 + device->gpu);
    return SUCCESS;
}

/* ---- figures of a device */

typedef struct {
    u64 total, free, used;
} Memory1;

typedef struct {
    u32 version;
    u64 total, reserved, free, used;
} Memory2;

/* The first version counts what the driver reserves as used. */
int nvmlDeviceGetMemoryInfo(Device *device, Memory1 *out) {
    u64 used = 0, reserved = 0;

    ENTER(device);
    figure(device, "memory_used", &used);
    figure(device, "memory_reserved", &reserved);
    out->used = used + reserved;
    int result = figure(device, "memory_total", &out->total);
    out->free = out->total - out->used;
    return result;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetMemoryInfo_v2(Device *device, Memory2 *out) {
    ENTER(device);
    if (out->version != (sizeof(Memory2) | 2u << 24))
        return VERSION_MISMATCH;
    out->used = out->reserved = 0;
    figure(device, "memory_used", &out->used);
    figure(device, "memory_reserved", &out->reserved);
    int result = figure(device, "memory_total", &out->total);
    out->free = out->total - out->used - out->reserved;
    return result;
}

GET(nvmlDeviceGetCurrentClocksEventReasons, u64, "clock_events")
GET(nvmlDeviceGetPcieReplayCounter, u32, "pcie_replays")
#endif

GET(nvmlDeviceGetCurrentClocksThrottleReasons, u64, "clock_events")
GET(nvmlDeviceGetPowerUsage, u32, "power_milliwatts")
GET(nvmlDeviceGetEnforcedPowerLimit, u32, "power_limit_milliwatts")
GET(nvmlDeviceGetTotalEnergyConsumption, u64, "energy_millijoules")

typedef struct {
    u32 gpu, memory;
} Utilization;

int nvmlDeviceGetUtilizationRates(Device *device, Utilization *out) {
    u64 gpu = 0, memory = 0;

    ENTER(device);
    int result = figure(device, "utilization", &gpu);
    figure(device, "memory_utilization", &memory);
    *out = (Utilization){(u32)gpu, (u32)memory};
    return result;
}

int nvmlDeviceGetTemperature(Device *device, int sensor, u32 *out) {
    u64 value = 0;

    (void)sensor;
    ENTER(device);
    int result = figure(device, "temperature", &value);
    *out = (u32)value;
    return result;
}

int nvmlDeviceGetClockInfo(Device *device, int domain, u32 *out) {
    u64 value = 0;

    ENTER(device);
    int result = figure(device, domain == 1 ? "sm_megahertz" : "memory_megahertz", &value);
    *out = (u32)value;
    return result;
}

int nvmlDeviceGetTotalEccErrors(Device *device, int kind, int since, u64 *out) {
    (void)since;
    ENTER(device);
    return figure(device, kind == 0 ? "ecc_corrected" : "ecc_uncorrected", out);
}

int nvmlDeviceGetRemappedRows(Device *device, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed) {
    u64 is_pending = 0, has_failed = 0;

    ENTER(device);
    int result = figure(device, "remap_pending", &is_pending);
    figure(device, "remap_failed", &has_failed);
    *corrected = *uncorrected = 0;
    *pending = (u32)is_pending;
    *failed = (u32)has_failed;
    return result;
}

typedef struct {
    u32 id, scope;
    long long timestamp, latency;
    int type, result;
    u64 value;
} Field;

int nvmlDeviceGetFieldValues(Device *device, int count, Field *fields) {
    ENTER(device);
    for (int i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "field%u", fields[i].id);
        fields[i].type = 3; /* unsigned long long */
        fields[i].result = figure(device, name, &fields[i].value);
    }
    return SUCCESS;
}

/* ---- processes */

typedef struct {
    u32 pid;
    u64 memory;
    u32 gpu_instance, compute_instance;
} Process;

int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, u32 *count, Process *out) {
    char key[32], text[512] = "", *rest = text, *entry;
    u32 room = *count, found = 0;

    ENTER(device);
    snprintf(key, sizeof key, "%d.processes", device->gpu);
    lookup(key, text, sizeof text);
    while (*text && (entry = strsep(&rest, ","))) {
        char *memory = strchr(entry, ':');
        u64 bytes = memory && strcmp(memory, ":hidden") ? strtoull(memory + 1, NULL, 0) : ULLONG_MAX;
        if (out && found < room)
            out[found] = (Process){(u32)atoi(entry), bytes, UINT_MAX, UINT_MAX};
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

/* ---- MIG */

int nvmlDeviceGetMigMode(Device *device, u32 *current, u32 *pending) {
    u64 count = 0;

    ENTER(device);
    int result = figure(device, "slices", &count);
    *current = *pending = count > 0;
    return result;
}

int nvmlDeviceGetMaxMigDeviceCount(Device *device, u32 *count) {
    ENTER(device);
    *count = MAX_SLICES;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, u32 index, Device **out) {
    u64 count = 0;

    ENTER(device);
    figure(device, "slices", &count);
    if (index >= count || index >= MAX_SLICES)
        return NOT_FOUND;
    *out = &slices[device->gpu][index];
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(Device *device, u32 *out) {
    ENTER(device);
    *out = (u32)device->slice + 1;
    return SUCCESS;
}

/* ---- Xid events */

enum { XID_CRITICAL = 8 };

typedef struct {
    long read_up_to;
    int watched[MAX_GPUS];
} EventSet;

typedef struct {
    Device *device;
    u64 type, data;
    u32 gpu_instance, compute_instance;
} Event;

int nvmlEventSetCreate(EventSet **out) {
    *out = calloc(1, sizeof **out);
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(Device *device, u64 types, EventSet *set) {
    ENTER(device);
    set->watched[device->gpu] = (types & XID_CRITICAL) != 0;
    return SUCCESS;
}

/* Delivers the next whole line of the event file; the wait is never waited out. */
int nvmlEventSetWait_v2(EventSet *set, Event *out, u32 milliseconds) {
    const char *path = getenv("FAKE_NVML_EVENTS");
    FILE *file = path ? fopen(path, "r") : NULL;
    int gpu, xid, result = TIMEOUT;

    (void)milliseconds;
    if (!file)
        return TIMEOUT;
    fseek(file, set->read_up_to, SEEK_SET);
    while (result == TIMEOUT && fscanf(file, "%d %d\n", &gpu, &xid) == 2) {
        set->read_up_to = ftell(file);
        if (gpu >= 0 && gpu < MAX_GPUS && set->watched[gpu]) {
            *out = (Event){&gpus[gpu], XID_CRITICAL, (u64)xid, UINT_MAX, UINT_MAX};
            result = SUCCESS;
        }
    }
    fclose(file);
    return result;
}
