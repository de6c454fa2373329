// Package browser drives a headless Chromium in tests, with the DevTools protocol over a pipe. The package has no
// dependencies. Its code has the build tag "browser": only "make test-ui" compiles it.
package browser
