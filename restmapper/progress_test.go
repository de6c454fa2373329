package restmapper

import "testing"

// Lookups reflect a change only after the mapper has received it.
func TestProgress_ReachesNoListWhileAChangeIsPassedOn(t *testing.T) {
	var p progress
	reaches := func() bool { return p.changeAfter("7", nil) == nil }
	if reaches() {
		t.Error("an empty list is reached before the first list")
	}
	p.begin()
	p.replace("7", nil)
	if !reaches() {
		t.Error("the list is not reached")
	}
	p.begin()
	if reaches() {
		t.Error("the list is reached while a change is passed on")
	}
	p.set("8", "a", "8")
	if !reaches() {
		t.Error("the list is not reached after the change")
	}
}

func TestProgress_ReachesAListOnceItsChangesHaveBeenPassedOn(t *testing.T) {
	for name, test := range map[string]struct {
		version string            // of the watch
		objects map[string]string // of the watch
		reached bool
	}{
		"the same objects":                      {"5", map[string]string{"a": "3", "b": "5"}, true},
		"an object is missing":                  {"3", map[string]string{"a": "3"}, false},
		"an object is older":                    {"4", map[string]string{"a": "3", "b": "4"}, false},
		"an object was deleted before the list": {"5", map[string]string{"a": "3", "b": "5", "c": "4"}, false},
		"an object was changed after the list":  {"8", map[string]string{"a": "8", "b": "5"}, true},
		"an object was created after the list":  {"8", map[string]string{"a": "3", "b": "5", "c": "8"}, true},
		"an object was deleted after the list":  {"8", map[string]string{"b": "5"}, true},
		"no change has been passed on":          {"", nil, false},
		"versions that cannot be compared":      {"x", map[string]string{"a": "x", "b": "5"}, false},
		"equal versions need not be comparable": {"x", map[string]string{"a": "3", "b": "5"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var p progress
			p.replace(test.version, test.objects)
			changed := p.changeAfter("7", map[string]string{"a": "3", "b": "5"})
			if reached := changed == nil; reached != test.reached {
				t.Errorf("reached: %t, want %t", reached, test.reached)
			}
			if changed == nil {
				return
			}
			p.bookmark("7")
			select {
			case <-changed:
			default:
				t.Error("a change does not end the wait")
			}
		})
	}
}
