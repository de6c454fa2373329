// Package tracingtest provides a collector of OpenTelemetry spans for tests.
package tracingtest
