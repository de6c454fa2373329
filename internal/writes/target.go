package writes

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Target is what a request writes to.
type Target struct {
	Server   string               `json:"-"` // see ServerOf
	Resource schema.GroupResource `json:"resource"`
	// The fields below are empty if the request has none.
	Namespace   string `json:"namespace,omitempty"`
	Name        string `json:"name,omitempty"`
	Subresource string `json:"-"`
}

// TargetOf returns the target of a request. It returns false for requests that write nothing that a watch could show:
// those with other methods, dry runs, upgraded connections, and those that a Pod, a Service or a Node answers.
func TargetOf(r *http.Request) (Target, bool) {
	switch r.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
	default:
		return Target{}, false
	}
	if r.Header.Get("Upgrade") != "" || isDryRun(r) {
		return Target{}, false
	}
	t, ok := parse(r.URL)
	if t.Subresource == "proxy" && t.Resource.Group == "" &&
		slices.Contains([]string{"pods", "services", "nodes"}, t.Resource.Resource) {
		return Target{}, false
	}
	return t, ok
}

// isDryRun reports whether a request is a dry run. client-go sends the options of a deletion in the body, in which no
// other value contains the word.
func isDryRun(r *http.Request) bool {
	if r.URL.Query().Get("dryRun") != "" {
		return true
	}
	if r.Method != http.MethodDelete || r.GetBody == nil {
		return false
	}
	body, err := r.GetBody()
	if err != nil {
		return false
	}
	defer func() { _ = body.Close() }()
	options, err := io.ReadAll(body)
	return err == nil && bytes.Contains(options, []byte(metav1.DryRunAll))
}

// ServerOf returns the API server with the given URL: its host, and the path of a proxy, if any.
func ServerOf(base *url.URL) string { return base.Host + strings.TrimSuffix(base.Path, "/") }

// parse returns the target in the URL of a request, whose path can begin with the path of a proxy.
func parse(u *url.URL) (t Target, ok bool) {
	segments := strings.Split(strings.Trim(u.Path, "/"), "/")
	for i, segment := range segments {
		var rest []string
		switch {
		case segment == "api" && len(segments) > i+2:
			rest = segments[i+2:]
		case segment == "apis" && len(segments) > i+3:
			t.Resource.Group, rest = segments[i+1], segments[i+3:]
		default:
			continue
		}
		isSubresource := func(name string) bool {
			return t.Resource.Group == "" && (name == "status" || name == "finalize")
		}
		if rest[0] == "namespaces" && len(rest) > 2 && !isSubresource(rest[2]) {
			t.Namespace, rest = rest[1], rest[2:]
		}
		t.Server = strings.Join(append([]string{u.Host}, segments[:i]...), "/")
		t.Resource.Resource = rest[0]
		if len(rest) > 1 {
			t.Name = rest[1]
		}
		if len(rest) > 2 {
			t.Subresource = rest[2]
		}
		return t, true
	}
	return Target{}, false
}
