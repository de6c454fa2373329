package integration

import "testing"

// A process that has the rights that the parts say they need, and those to watch, and no others, serves a parent's whole life.
func TestHandlers_TheRightsThatAreSaidSuffice(t *testing.T) {
	h := newHarness(t)
	s := newSetting(h)
	s.lifetimeIn(h, s.account()).live(death{})
}
