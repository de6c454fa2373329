// Package bench compares the engine with existing alternatives in the same run on a real API server. Loads that are too
// large for an API server on the same machine are served by a scripted one. The package is not importable. "make bench"
// runs its benchmarks, and README.md describes them.
//
// Each engine is measured in a separate process, so that goroutines and heap belong to that engine alone. To do this,
// the test binary runs itself again with a job in an environment variable.
package bench
