package identity

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/serviceaccount"
)

// FuzzResolve resolves identities from what authors, tenants and owners of namespaces write. The result is a rejection,
// or a ServiceAccount in the namespace of the instance that allows the Blueprint.
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
		id, err := m.Resolve(t.Context(), Request{Blueprint: blueprint, ServiceAccountName: name, Namespace: namespace})
		for _, r := range s.requests {
			if len(r.Header["Impersonate-User"]) > 0 {
				t.Errorf("%s was requested as %s", r.URL, r.Header["Impersonate-User"])
			}
			path, is := strings.CutPrefix(r.URL.Path, "/api/v1/namespaces/")
			if is && path != id.Namespace+"/serviceaccounts/"+id.Name && err == nil {
				t.Errorf("%s was requested for %s", r.URL, id)
			}
		}
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
			consents := slices.ContainsFunc(strings.Split(annotation, ","),
				func(allowed string) bool { return strings.TrimSpace(allowed) == blueprint })
			splitNamespace, splitName, splitErr := serviceaccount.SplitUsername(id.Username())
			if !consents || splitErr != nil || id != (Identity{splitNamespace, splitName}) || id.Name != name ||
				id.Username() == platformUser || strings.HasPrefix(id.Namespace, "kube-") ||
				namespace != "" && id.Namespace != namespace || namespace == "" && id.Namespace != platformNamespace ||
				namespace == platformNamespace {
				t.Fatalf("%s is used for %q with ServiceAccount %q in namespace %q, whose annotation is %q", id, blueprint, name,
					namespace, annotation)
			}
		}
	})
}
