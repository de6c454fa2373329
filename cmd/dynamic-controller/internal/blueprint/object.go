package blueprint

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint/expression"
)

// forbiddenMetadata lists the fields of metadata that templates cannot set. A finalizer that no controller removes
// would block the deletion of the object, its instance and their namespace.
var forbiddenMetadata = []string{
	"uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds",
	"managedFields", "selfLink", "ownerReferences", "finalizers",
}

// stringMaps are the fields of metadata that are maps of strings.
var stringMaps = []string{"labels", "annotations"}

const (
	notInTemplates = "must not be set in a template"
	// notOwnKeys is the reason for rejecting labels and annotations that only the platform sets.
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

// checkObject checks the fields that all objects have, and sets the kind of the template.
func (c *Compiled) checkObject(template map[string]any, own Type, options Options, r *resource, problems *collector) {
	apiVersion, kind := fixed(template, "apiVersion", r, problems), fixed(template, "kind", r, problems)
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil || apiVersion != "" && gv.Version == "" {
		problems.add(r.Path+".apiVersion", "", "%q is not a valid apiVersion", cut(apiVersion, maxQuoted))
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
	if !is {
		problems.add(at, "", "must be a map with a name")
		return
	}
	if _, has := metadata["generateName"]; has {
		problems.add(at+".generateName", "", "must not be set; set a name such as ${self.metadata.name}-web")
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

// checkStringMap checks labels or annotations, except for expressions.
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

// checkNamespace checks the namespace, and sets whether the objects are namespaced. If the scope of the kind is
// unknown, they are assumed to be namespaced if the template sets a namespace or the instance is namespaced.
func (c *Compiled) checkNamespace(metadata map[string]any, options Options, r *resource, problems *collector) {
	at := r.Path + ".metadata.namespace"
	namespace, has := metadata["namespace"]
	if s, is := namespace.(string); has && (!is || s == "") {
		problems.add(at, "", "must be a string that is not empty")
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

// fixed returns a string that must not contain expressions.
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

// ownNamespace is the expression for the default namespace of a child.
const ownNamespace = "self.metadata.namespace"

var validNamespacePattern = regexp.MustCompile(`^[a-z0-9*]([-a-z0-9*]{0,61}[a-z0-9*])?$`)

func checkAllowedNamespaces(patterns []string, problems *collector) {
	const at = "spec.allowedNamespaces"
	if len(patterns) > MaxAllowedNamespaces {
		problems.add(at, "", "has more than %d items", MaxAllowedNamespaces)
		return
	}
	for i, pattern := range patterns {
		if !validNamespacePattern.MatchString(pattern) {
			problems.add(fmt.Sprintf("%s[%d]", at, i), "", "%q is not a namespace or a pattern such as team-*",
				cut(pattern, maxQuoted))
		}
	}
}

// checkNamespaceExpression rejects a namespace that is computed from the instance if the Blueprint does not list the
// allowed namespaces. Otherwise, users of instances could choose any namespace.
func (c *Compiled) checkNamespaceExpression(namespace string, r *resource, problems *collector) {
	parts, err := expression.Scan(namespace)
	if err != nil {
		return
	}
	if !slices.ContainsFunc(parts, func(p expression.Part) bool { return p.Expression }) {
		if c.isOutside(namespace) {
			problems.add(r.Path+".metadata.namespace", "", outside, cut(namespace, maxQuoted))
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
			"can be computed only if spec.allowedNamespaces lists the allowed results")
	}
}

// limited and outside are reasons for rejecting what a platform that is limited to some namespaces does not serve.
const (
	limited = "--namespaces limits the platform to some namespaces"
	outside = "namespace %q is not in --namespaces, to which the platform is limited"
)

// isOutside reports whether the platform is limited to other namespaces.
func (c *Compiled) isOutside(namespace string) bool {
	return len(c.namespaces) > 0 && !slices.Contains(c.namespaces, namespace)
}

// checkComputedNamespace checks the result of an expression. The instance's own namespace is always allowed.
func (c *Compiled) checkComputedNamespace(r *resource, namespace, own string) *Problem {
	if !r.computesNamespace || namespace == own && own != "" {
		return nil
	}
	at := r.Path + ".metadata.namespace"
	if len(validation.IsDNS1123Label(namespace)) > 0 {
		return &Problem{Path: at, Reason: fmt.Sprintf("%q is not a valid name of a namespace", cut(namespace, maxQuoted))}
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
