package integration

import "testing"

// The process has only the permissions that the documentation of package handlers lists, plus list and watch
// permissions for its caches.
func TestHandlers_DocumentedPermissionsSuffice(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	s.newLifecycle(h, s.newAccount()).run(crash{})
}
