package main

import (
	"runtime/debug"
	"testing"
)

func TestSetGCPercent(t *testing.T) {
	const initial = 100
	defer debug.SetGCPercent(debug.SetGCPercent(initial))
	for _, tt := range []struct {
		name, gogc string
		want       int
	}{
		{"is lower than Go's default", "", 50},
		{"keeps the value of GOGC", "100", initial},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("GOGC", tt.gogc)
			setGCPercent()
			if got := debug.SetGCPercent(initial); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}
