/* A runtime in place of examples/own_runtime/runtime.c, which a test lets go wrong: the file $FAULT has the fault
 * and the digest of the release that it hits. */
#include "runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct runtime { char path[4096]; };

static int has_fault(const char *path, const char *wanted) {
    char fault[16] = "", digest[65] = "";
    FILE *file = fopen(getenv("FAULT"), "r");
    if (!file) return 0;
    int count = fscanf(file, "%15s %64s", fault, digest);
    fclose(file);
    return count == 2 && !strcmp(fault, wanted) && strstr(path, digest);
}

struct runtime *runtime_open(const char *path, const char *provider, const char *options) {
    struct runtime *made = calloc(1, sizeof *made);
    (void)provider, (void)options;
    if (!made || access(path, R_OK)) {
        free(made);
        return NULL;
    }
    snprintf(made->path, sizeof made->path, "%s", path);
    return made;
}

int runtime_run(struct runtime *runtime, float *score) {
    *score = 0.5f;
    if (has_fault(runtime->path, "dies")) abort();
    while (has_fault(runtime->path, "hangs")) sleep(1);
    return has_fault(runtime->path, "fails") ? -1 : 0;
}

void runtime_close(struct runtime *runtime) { free(runtime); }
