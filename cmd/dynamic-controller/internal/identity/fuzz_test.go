package identity

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/serviceaccount"
)

// FuzzResolve resolves identities from values that authors, tenants and namespace owners control. The result is either
// a rejection or a ServiceAccount in the namespace of the instance that allows the Blueprint.
func FuzzResolve(f *testing.F) {
	for _, name := range []string{"web", "", "web:x", "../secrets/web", "system:serviceaccount:shop:web", "web\n", "WEB",
		"controller", strings.Repeat("a", 300), "a%2fb", "%", "."} {
		for _, namespace := range []string{"shop", "", "kube-system", platformNamespace, "shop:other", "shop/../x"} {
			f.Add("websites", name, namespace, "shops, websites", name == "")
		}
	}
	f.Add("web", "web", "shop", "websites,we b,,", false)
	f.Fuzz(func(t *testing.T, blueprint, name, namespace, annotation string, platformAllowed bool) {
		if blueprint == "" {
			return // objects have names
		}
		m, s, _ := newFake(t, Options{AllowPlatformIdentity: platformAllowed})
		for _, account := range []string{namespace, platformNamespace} {
			s.accounts[account+"/"+name] = map[string]string{AllowedBlueprints: annotation}
		}
		request := Request{Blueprint: blueprint, ServiceAccountName: name, Namespace: namespace}
		id, err := m.Resolve(t.Context(), request)
		var rejection *Rejection
		switch {
		case err != nil:
			if !errors.As(err, &rejection) || !id.IsPlatform() {
				t.Fatalf("got %s, %v", id, err)
			}
		case id.IsPlatform():
			if name != "" || !platformAllowed {
				t.Fatalf("%q is the platform's own identity", name)
			}
		default:
			checkIdentity(t, id, request, annotation)
			if path := s.last().URL.Path; path != "/api/v1/namespaces/"+id.Namespace+"/serviceaccounts/"+id.Name {
				t.Fatalf("%s was requested for %s", path, id)
			}
		}
	})
}

// checkIdentity checks that a ServiceAccount with the annotation can be used for a request.
func checkIdentity(t *testing.T, id Identity, request Request, annotation string) {
	t.Helper()
	consents := slices.ContainsFunc(strings.Split(annotation, ","),
		func(allowed string) bool { return strings.TrimSpace(allowed) == request.Blueprint })
	namespace, name, err := serviceaccount.SplitUsername(id.Username())
	if !consents || err != nil || id != (Identity{namespace, name}) {
		t.Fatalf("%s with annotation %q is used for %+v: %v", id, annotation, request, err)
	}
	want := Identity{cmp.Or(request.Namespace, platformNamespace), request.ServiceAccountName}
	if id != want || id.Username() == platformUser || strings.HasPrefix(id.Namespace, "kube-") ||
		request.Namespace == platformNamespace {
		t.Fatalf("identity %s is used for request %+v", id, request)
	}
}
