// Package config defines the configuration file of the run command. A file is decoded strictly: unknown and duplicate
// fields are errors. Each field corresponds to a flag, except for the configuration of tracing.
package config
