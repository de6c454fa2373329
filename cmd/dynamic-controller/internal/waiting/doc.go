// Package waiting reports which request a command is waiting for, if the command takes longer than a second.
package waiting
