package controllertest

import (
	"slices"

	validname "k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// rules are the differences between types that have no schema.
type rules struct {
	validName validation.ValidateNameFunc
	// builtIn is true for types that the API server decodes into Go types.
	builtIn bool
	// unconditional is true if an update can omit the resourceVersion.
	unconditional bool
	// status is true if the status is a subresource.
	status bool
	// generation is true if changes increment the generation.
	generation bool
}

// rulesFor returns the rules for a type. They are those of custom resources with the subresource status, except for
// well-known built-in types.
func rulesFor(gvr schema.GroupVersionResource) rules {
	r := rules{
		validName: validation.NameIsDNSSubdomain, builtIn: slices.Contains(builtInGroups, gvr.Group),
		status: true, generation: true,
	}
	if !r.builtIn {
		return r
	}
	r.unconditional = slices.Contains(unconditionalGroups, gvr.Group)
	switch gvr.Resource {
	case "configmaps", "secrets", "serviceaccounts", "events", "endpoints", "limitranges", "leases", "endpointslices",
		"controllerrevisions", "storageclasses", "csidrivers", "csinodes", "ingressclasses":
		r.status, r.generation = false, false
	case "services", "nodes", "persistentvolumes", "persistentvolumeclaims", "resourcequotas":
		r.generation = false
	case "networkpolicies":
		r.status = false
	case "roles", "rolebindings", "clusterroles", "clusterrolebindings":
		r.status, r.generation, r.validName = false, false, isPathSegment
	case "namespaces":
		r.generation, r.validName = false, validation.NameIsDNSLabel
	}
	return r
}

// builtInGroups are the groups of built-in types to which handlers usually write.
var builtInGroups = append([]string{"policy", "storage.k8s.io", "coordination.k8s.io"}, unconditionalGroups...)

// unconditionalGroups are the groups in which all types can be updated without a resourceVersion.
var unconditionalGroups = []string{
	"", "apps", "batch", "autoscaling", "networking.k8s.io", "discovery.k8s.io", "rbac.authorization.k8s.io",
}

// isPathSegment is the rule for names that can contain any character except those that make a path ambiguous.
func isPathSegment(name string, prefix bool) []string {
	if prefix {
		return validname.IsPathSegmentPrefix(name)
	}
	return validname.IsPathSegmentName(name)
}
