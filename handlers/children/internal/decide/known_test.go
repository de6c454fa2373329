package decide

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

func TestVersion_IsAfter(t *testing.T) {
	object := testObject()
	object.SetResourceVersion("9")
	for name, c := range map[string]struct {
		uid             types.UID
		resourceVersion string
		want            bool
	}{
		"later":                            {"child", "10", true},
		"equal":                            {"child", "9", false},
		"earlier":                          {"child", "8", false},
		"versions of different objects":    {"other-uid", "10", false},
		"versions that cannot be compared": {"child", "x", false},
		"no earlier version":               {"", "", false},
	} {
		v := Version{UID: c.uid, ResourceVersion: c.resourceVersion, Written: start}
		if got := v.IsAfter(object, start); got != c.want {
			t.Errorf("%s: got %t", name, got)
		}
		if v.Written = start.Add(-2 * MaxLag); v.IsAfter(object, start) {
			t.Errorf("%s: the cache is believed to lack an old write", name)
		}
	}
}

// The limits outlast the object, so that others cannot lift them by deleting it. Everything else is forgotten.
func TestKnown_ResetKeepsOnlyTheLimits(t *testing.T) {
	last := recreation{hash: "a", deleted: start}
	entry := Known{
		exists: true, applied: lastApply{hash: "a"}, futile: "a", recreation: last, judgement: judgement{hash: "a"},
		kept: othersPaths{existing: make([]fieldpath.Path, 1)}, earlier: othersPaths{existing: make([]fieldpath.Path, 1)},
	}
	for range 5 {
		entry.fights.corrections(start).take()
		entry.fights.creations(start).take()
	}
	entry.reset()
	if entry.fights.corrections(start).wait() == 0 || entry.fights.creations(start).wait() == 0 ||
		entry.recreation != last || entry.judgement.hash != "a" {
		t.Errorf("the limits are lost: %+v", entry)
	}
	if entry.exists || entry.applied.hash != "" || entry.futile != "" || entry.kept.existing != nil ||
		entry.earlier.existing != nil {
		t.Errorf("the object is not forgotten: %+v", entry)
	}
}
