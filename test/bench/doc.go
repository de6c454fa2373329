// Package bench compares the engine with existing alternatives in the same run on a real API server. It is not
// importable. "make bench" runs its benchmarks, and README.md describes them.
//
// Each engine is measured in a separate process, so that goroutines and heap belong to that engine alone. To do this,
// the test binary runs itself again with a job in an environment variable.
package bench
