// Package bench measures the engine on a real API server, and in the same run what people build today. It has nothing
// to import: its benchmarks are run with "make bench", and the README beside it says what they measure.
//
// Each engine is measured in a process of its own, so that the goroutines and the heap are its own: the test binary
// starts itself again, with the job in an environment variable.
package bench
