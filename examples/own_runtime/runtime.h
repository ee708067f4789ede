/* The calls of a runtime that camera.c needs. Put those of your runtime in their place. */
struct runtime;
struct runtime *runtime_open(const char *path, const char *provider, const char *options);
int runtime_run(struct runtime *runtime, float *score); /* 0, or -1 for a failure */
void runtime_close(struct runtime *runtime);
