// Package waiting reports what a command waits for, if the command takes longer than a second.
package waiting
