package apiproxy

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Call contains the attributes of a request that are used for authorization.
type Call struct {
	Verb      string // Such as list, watch or patch. If Resource is empty, Verb is the HTTP method in lower case.
	Group     string
	Resource  string // Includes the subresource, as in RBAC rules, for example "widgets/status".
	Namespace string
	Name      string
	Path      string // The path of the URL.
	DryRun    bool
	Status    int // The HTTP status code. For a watch, it is recorded when the watch starts.
}

// CallOf returns the attributes of a request. For requests that controllers send, the attributes are the same as in
// k8s.io/apiserver's RequestInfo.
func CallOf(r *http.Request) Call { return callOf(r.Method, r.URL) }

// Kind returns the verb and the resource of the call, for example "patch widgets/status". If the call has no resource,
// Kind returns the verb and the path.
func (c Call) Kind() string {
	if c.Resource == "" {
		return c.Verb + " " + c.Path
	}
	return c.Verb + " " + c.Resource
}

// IsWrite reports whether the call can modify objects.
func (c Call) IsWrite() bool {
	return !c.DryRun && !slices.Contains([]string{"get", "head", "list", "watch"}, c.Verb)
}

func callOf(method string, u *url.URL) Call {
	c := Call{Verb: strings.ToLower(method), Path: u.Path}
	parts := strings.Split(strings.Trim(u.Path, "/"), "/")
	switch {
	case parts[0] == "api" && len(parts) > 2:
		parts = parts[2:]
	case parts[0] == "apis" && len(parts) > 3:
		c.Group, parts = parts[1], parts[3:]
	default:
		return c
	}
	if parts[0] == "namespaces" && len(parts) > 2 && !slices.Contains([]string{"status", "finalize"}, parts[2]) {
		c.Namespace, parts = parts[1], parts[2:]
	}
	c.Resource = parts[0]
	if len(parts) > 1 {
		c.Name = parts[1]
	}
	if len(parts) > 2 {
		c.Resource += "/" + strings.Join(parts[2:], "/")
	}
	c.Verb = verbOf(method, u.Query(), c.Name != "")
	c.DryRun = u.Query().Get("dryRun") != ""
	return c
}

func verbOf(method string, query url.Values, named bool) string {
	switch method {
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		if named {
			return "delete"
		}
		return "deletecollection"
	}
	switch watch := query.Get("watch"); {
	case watch != "" && watch != "false" && watch != "0":
		return "watch"
	case named:
		return "get"
	default:
		return "list"
	}
}
