// Package monitoring tests the alerts and the dashboard in the folder monitoring with the packages of Prometheus. It is
// a module of its own because nothing else depends on Prometheus.
package monitoring
