package acceptance

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/dynamic-controller/engine/internal/requestpath"
)

// misroutedBy returns the verbs whose requests the API server's parser misroutes.
func misroutedBy(t *testing.T, resource schema.GroupResource, namespaced bool) (verbs []string) {
	t.Helper()
	prefix, namespace := "/apis/"+resource.Group+"/v1/", ""
	if resource.Group == "" {
		prefix = "/api/v1/"
	}
	all := prefix + resource.Resource
	within := all
	if namespaced {
		namespace = "shop"
		within = prefix + "namespaces/" + namespace + "/" + resource.Resource
	}
	parser := apirequest.RequestInfoFactory{
		APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api"),
	}
	for verb, r := range map[string]*http.Request{
		"create": httptest.NewRequest(http.MethodPost, within, http.NoBody),
		"delete": httptest.NewRequest(http.MethodDelete, within+"/a", http.NoBody),
		"get":    httptest.NewRequest(http.MethodGet, within+"/a", http.NoBody),
		"list":   httptest.NewRequest(http.MethodGet, all, http.NoBody),
		"patch":  httptest.NewRequest(http.MethodPatch, within+"/a", http.NoBody),
		"watch":  httptest.NewRequest(http.MethodGet, all+"?watch=true", http.NoBody),
	} {
		info, err := parser.NewRequestInfo(r)
		isList := verb == "list" || verb == "watch"
		wantNamespace := namespace
		if isList {
			wantNamespace = ""
		}
		if err != nil || info.Verb != verb || info.Resource != resource.Resource || info.Namespace != wantNamespace ||
			info.Subresource != "" || (info.Name == "a") == (isList || verb == "create") {
			verbs = append(verbs, verb)
		}
	}
	slices.Sort(verbs)
	return verbs
}

// The test is here because the library does not depend on the API server.
func TestMisrouted_MatchesTheAPIServer(t *testing.T) {
	for _, name := range []string{
		"watch", "proxy", "namespaces", "status", "finalize", "scale", "bindings", "log", "exec", "apis", "api", "v1",
		"healthz", "list", "get", "create", "delete", "patch", "watches", "statuses", "openapi", "namespace", "redirect",
	} {
		for _, namespaced := range []bool{false, true} {
			resource := schema.GroupResource{Group: "parts.example.com", Resource: name}
			want := misroutedBy(t, resource, namespaced)
			if got := requestpath.Misrouted(resource, namespaced); !slices.Equal(got, want) {
				t.Errorf("%s (namespaced: %t): got %q, want %q", name, namespaced, got, want)
			}
		}
	}
	// Built-in namespaces are served although the parser returns the name as the namespace.
	if got := requestpath.Misrouted(schema.GroupResource{Resource: "namespaces"}, false); len(got) > 0 {
		t.Errorf("got %q for built-in namespaces", got)
	}
}
