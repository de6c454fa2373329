// Package requestpath describes resources whose names make the paths of requests ambiguous.
package requestpath

import "k8s.io/apimachinery/pkg/runtime/schema"

// Misrouted returns the verbs whose requests do not reach a resource, because the API server parses their paths
// differently. It returns nil for almost all resources. The verbs list and watch are those of requests for all
// namespaces.
//
// The API server does not reject a CustomResourceDefinition with such a plural, and discovery lists all verbs for it.
// The names are those in k8s.io/apiserver/pkg/endpoints/request, with which a test of the platform compares them.
func Misrouted(resource schema.GroupResource, namespaced bool) []string {
	switch name := resource.Resource; {
	case (name == "watch" || name == "proxy") && namespaced: // prefixes of deprecated paths, such as /watch/pods
		return []string{"list", "watch"}
	case name == "watch" || name == "proxy":
		return []string{"create", "delete", "get", "list", "patch", "watch"}
	case name == "namespaces" && !namespaced && resource.Group != "": // the name of the object is parsed as a namespace
		return []string{"delete", "get", "patch"}
	case (name == "status" || name == "finalize") && namespaced: // subresources of namespaces
		return []string{"create", "delete", "get", "patch"}
	}
	return nil
}
