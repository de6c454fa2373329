package apiproxy

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Call is a request as an authorizer sees it.
type Call struct {
	Verb      string // list, watch, patch, ...; the HTTP method in lower case if Resource is empty
	Group     string
	Resource  string // with the subresource, as in a role: "widgets/status"
	Namespace string
	Name      string
	Path      string // of the URL
	Status    int    // of the answer's headers; a watch has them when it begins
}

// CallOf tells what a request is, as k8s.io/apiserver's RequestInfo does for all that a controller asks for.
func CallOf(r *http.Request) Call { return callOf(r.Method, r.URL) }

// Kind tells the call's verb and resource, or its path if it is for none: "patch widgets/status".
func (c Call) Kind() string {
	if c.Resource == "" {
		return c.Verb + " " + c.Path
	}
	return c.Verb + " " + c.Resource
}

// IsWrite tells whether the call can change something.
func (c Call) IsWrite() bool {
	return !slices.Contains([]string{"get", "head", "list", "watch"}, c.Verb)
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
