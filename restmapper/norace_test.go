//go:build !race

package restmapper

const raceEnabled = false
