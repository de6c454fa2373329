package blueprint

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint/expression"
)

// forbiddenMetadata lists the metadata fields that templates must not set. For example, a finalizer that no controller
// removes would block deletion of the object, the instance and the namespace.
var forbiddenMetadata = []string{
	"uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds",
	"managedFields", "selfLink", "ownerReferences", "finalizers",
}

// stringMaps lists the metadata fields that are maps of strings.
var stringMaps = []string{"labels", "annotations"}

const (
	notInTemplates = "must not be set in a template"
	// notOwnKeys is the reason for rejecting labels and annotations whose keys are reserved for the platform.
	notOwnKeys = "keys under platform.example.com/ " + notInTemplates
)

func setsOwnKey(fields map[string]any) bool {
	for key := range fields {
		if strings.HasPrefix(key, GroupVersion.Group+"/") {
			return true
		}
	}
	return false
}

// checkObject checks the fields that all objects have in common, and sets r.GVK and r.Namespaced.
func (c *Compiled) checkObject(template map[string]any, own Type, options Options, r *resource, problems *collector) {
	apiVersion, kind := fixed(template, "apiVersion", r, problems), fixed(template, "kind", r, problems)
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil || apiVersion != "" && gv.Version == "" {
		problems.add(r.Path+".apiVersion", "", "%q is not a valid apiVersion; use one such as apps/v1",
			Cut(apiVersion, maxQuoted))
	}
	r.GVK = gv.WithKind(kind)
	if c.isOwn(r.GVK.GroupKind(), own) {
		problems.add(r.Path+".kind", "", "must not be the Blueprint's own type")
	}
	if _, has := template["status"]; has {
		problems.add(r.Path+".status", "", notInTemplates)
	}
	at := r.Path + ".metadata"
	metadata, is := template["metadata"].(map[string]any)
	switch {
	case !is:
		problems.add(at, "", "must be a map with a name")
		return
	case r.Reference:
		c.checkNamespace(metadata, options, r, problems)
		return
	}
	if _, has := metadata["generateName"]; has {
		problems.add(at+".generateName", "", "must not be set; set metadata.name, for example ${self.metadata.name}-web")
	} else if name, is := metadata["name"].(string); !is || name == "" {
		problems.add(at+".name", "", "is required, for example ${self.metadata.name}-web")
	}
	for _, name := range forbiddenMetadata {
		if _, has := metadata[name]; has {
			problems.add(at+"."+name, "", notInTemplates)
		}
	}
	for _, field := range stringMaps {
		checkStringMap(metadata[field], at+"."+field, problems)
	}
	c.checkNamespace(metadata, options, r, problems)
}

// checkStringMap checks labels or annotations. If the whole map is an expression, it is checked after rendering
// instead. See checkRenderedMaps.
func checkStringMap(v any, path string, problems *collector) {
	if s, is := v.(string); v == nil || is && strings.Contains(s, "${") {
		return
	}
	fields, is := v.(map[string]any)
	if !is {
		problems.add(path, "", "must be a map of strings")
		return
	}
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		if _, is := fields[key].(string); !is {
			problems.add(child(path, key), "", "must be a string; put it in quotes")
		}
	}
	if setsOwnKey(fields) {
		problems.add(path, "", notOwnKeys)
	}
}

// checkNamespace checks the namespace and sets r.Namespaced. A kind whose scope is unknown is assumed to be namespaced
// if the template sets a namespace or the instance is namespaced.
func (c *Compiled) checkNamespace(metadata map[string]any, options Options, r *resource, problems *collector) {
	at := r.Path + ".metadata.namespace"
	namespace, has := metadata["namespace"]
	if s, is := namespace.(string); has && (!is || s == "") {
		problems.add(at, "", "must be a non-empty string")
	} else if has {
		c.checkNamespaceExpression(s, r, problems)
	}
	r.Namespaced = has || c.namespaced
	if options.IsNamespaced == nil {
		return
	}
	namespaced, known := options.IsNamespaced(r.GVK)
	switch {
	case !known:
		return
	case !namespaced && len(c.namespaces) > 0:
		problems.add(r.Path+".kind", "", "%s is cluster-scoped, but %s", r.GVK.Kind, limited)
	case namespaced && !has && !c.namespaced:
		problems.add(at, "", "is required, because %s is namespaced and the instance is not", r.GVK.Kind)
	case !namespaced && has:
		problems.add(at, "", "must not be set, because %s is cluster-scoped", r.GVK.Kind)
	}
	r.Namespaced = namespaced
}

// fixed returns the value of a required string field that must not contain expressions. It returns "" if the value is
// invalid.
func fixed(template map[string]any, field string, r *resource, problems *collector) string {
	s, is := template[field].(string)
	switch {
	case !is || s == "":
		problems.add(r.Path+"."+field, "", "is required and must be a string")
		return ""
	case strings.Contains(s, "${"):
		problems.add(r.Path+"."+field, "", "must not contain expressions")
		return ""
	}
	return s
}

func (c *Compiled) isOwn(gk schema.GroupKind, own Type) bool {
	if crd := c.definition; crd != nil {
		return gk == schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Spec.Names.Kind}
	}
	return own.CRD == "" && gk.Kind != "" && gk == schema.GroupKind{Group: own.Group, Kind: own.Kind}
}

// ownNamespace is the expression that yields the namespace of the instance. Templates can always use it.
const ownNamespace = "self.metadata.namespace"

// checkNamespaceExpression checks the namespace of a template. It rejects a constant namespace that --namespaces
// excludes. It rejects a computed namespace if spec.allowedNamespaces is empty because users could then choose any
// namespace for the children of their instances.
func (c *Compiled) checkNamespaceExpression(namespace string, r *resource, problems *collector) {
	parts, err := expression.Scan(namespace)
	if err != nil {
		return
	}
	if !slices.ContainsFunc(parts, func(p expression.Part) bool { return p.Expression }) {
		if c.isOutside(namespace) {
			problems.add(r.Path+".metadata.namespace", "", outside, Cut(namespace, maxQuoted))
		}
		return
	}
	text := ""
	if len(parts) == 1 {
		text = strings.TrimSpace(parts[0].Text)
	}
	if text == ownNamespace {
		return
	}
	r.computesNamespace = true
	if len(c.allowedNamespaces) == 0 {
		problems.add(r.Path+".metadata.namespace", text,
			"can be computed only if spec.allowedNamespaces lists the allowed namespaces")
	}
}

// limited and outside are the reasons for rejecting objects outside the namespaces in --namespaces.
const (
	limited = "--namespaces limits the platform to some namespaces"
	outside = "namespace %q is not listed in --namespaces"
)

// isOutside reports whether the namespace is excluded by --namespaces.
func (c *Compiled) isOutside(namespace string) bool {
	return len(c.namespaces) > 0 && !slices.Contains(c.namespaces, namespace)
}

// checkComputedNamespace checks the namespace that an expression yields. The instance's own namespace is always
// allowed.
func (c *Compiled) checkComputedNamespace(r *resource, namespace, own string) *Problem {
	if !r.computesNamespace || namespace == own && own != "" {
		return nil
	}
	at := r.Path + ".metadata.namespace"
	if len(validation.IsDNS1123Label(namespace)) > 0 {
		return &Problem{Path: at, Reason: fmt.Sprintf("%q is not a valid namespace name", Cut(namespace, maxQuoted))}
	}
	if !slices.ContainsFunc(c.allowedNamespaces, func(pattern string) bool {
		matches, err := path.Match(pattern, namespace)
		return err == nil && matches
	}) {
		reason := fmt.Sprintf("namespace %q does not match spec.allowedNamespaces of the Blueprint", namespace)
		return &Problem{Path: at, Reason: reason}
	}
	if c.isOutside(namespace) {
		return &Problem{Path: at, Reason: fmt.Sprintf(outside, namespace)}
	}
	return nil
}
