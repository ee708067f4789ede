"""Running a model: sessions, processes for providers, trials, timing, toolchains."""
