/* An application in C: it runs the active model with a runtime of its own, follows updates, and reports.
 *
 *     gcc -std=c99 -O2 camera.c runtime.c -lm -o camera && ./camera defects */
#include "edgepack.h"

#include <math.h>
#include <signal.h>

#include "runtime.h"

static volatile sig_atomic_t stop;

static void handle(int number) {
    (void)number;
    stop = 1;
}

static struct runtime *open_release(const struct edgepack_model *model) {
    return runtime_open(model->path, model->provider, model->options);
}

/* Open the release that serves now beside the one that runs, and put it in its place. Return when to try again, or
 * 0. The agent is asked for half a second: a thread would let the inferences go on. */
static double follow(struct edgepack *e, struct runtime **running) {
    struct edgepack_model newer;
    struct runtime *opened;
    if (edgepack_ask(e->model.name, &newer)) return edgepack_now() + 5;
    if (!strcmp(newer.digest, e->model.digest) && !strcmp(newer.variant, e->model.variant)) return 0;
    edgepack_opening(e, &newer);
    if (!(opened = open_release(&newer))) {
        edgepack_trouble(e, "the runtime cannot open the newer release");
        return 0;
    }
    runtime_close(*running);
    *running = opened;
    edgepack_serves(e, &newer);
    printf("%s %s\n", newer.name, newer.version);
    fflush(stdout);
    return 0;
}

int main(int count, char **words) {
    static struct edgepack_model model;
    static struct edgepack e;
    struct timespec pause = {0, 10000000};
    struct runtime *running;
    double again_at = 0;
    float score;
    if (count != 2 || edgepack_ask(words[1], &model)) return 2;
    signal(SIGTERM, handle), signal(SIGINT, handle);
    edgepack_start(&e, &model);
    if (!(running = open_release(&model))) {
        edgepack_trouble(&e, "the runtime cannot open the release");
        edgepack_close(&e);
        return 1;
    }
    edgepack_serves(&e, &model);
    printf("%s %s\n", model.name, model.version);
    fflush(stdout);
    while (!stop) {
        if (edgepack_changed(&e) || (again_at > 0 && edgepack_now() > again_at)) again_at = follow(&e, &running);
        double began = edgepack_begin(&e);
        int failed = runtime_run(running, &score);
        edgepack_end(&e, began, failed ? EDGEPACK_FAILED : isfinite(score) ? EDGEPACK_DONE : EDGEPACK_NOT_FINITE);
        nanosleep(&pause, NULL);
    }
    edgepack_close(&e);
    runtime_close(running);
    return 0;
}
