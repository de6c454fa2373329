package feed

import "testing"

func TestTarget_ReceivesTheObjectThatAffectsOthers(t *testing.T) {
	bubble(t, serving(owned(gadgets)), func(f *fixture) {
		f.put(widgets, "a")
		f.put(widgets, "b")
		f.attach()
		f.target.expect(t, "the initial sync", "existing a", "existing b")
		f.put(gadgets, "of-a", "a")
		f.target.expect(t, "a new child", "changed a")
		if by := f.target.affectedBy; by != "gadgets of-a" {
			t.Errorf("affected by %q", by)
		}
		f.put(gadgets, "of-b", "b")
		f.put(widgets, "a")
		f.target.expect(t, "a new child and a changed object", "changed b", "changed a")
		if by := f.target.affectedBy; by != "gadgets of-b" {
			t.Errorf("affected by %q, want the last child", by)
		}
	})
}

func TestTarget_ReceivesAllObjectsAfterALoss(t *testing.T) {
	bubble(t, serving(owned(gadgets)), func(f *fixture) {
		f.attach()
		f.eventHandler(t.Context()).Lost()
		f.target.expect(t, "a loss of the type's own objects", "all objects after a loss")
		f.secondaryHandler(t.Context(), f.secondaries[owned(gadgets).Key()]).Lost()
		f.target.expect(t, "a loss of children", "all objects after a loss")
	})
}
