package blueprint

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// servers lists the fields of metadata that only the API server and the platform set. A finalizer that nobody removes keeps
// an object, its instance and their namespace from ever being deleted.
var servers = []string{
	"uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds",
	"managedFields", "selfLink", "ownerReferences", "finalizers",
}

const notInTemplates = "must not be set in a template"

// checkObject checks what every object has to have, and finds out what kind the template makes.
func (c *Compiled) checkObject(template map[string]any, own Type, options Options, r *resource, problems *collector) {
	apiVersion, kind := fixed(template, "apiVersion", r, problems), fixed(template, "kind", r, problems)
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil || apiVersion != "" && gv.Version == "" {
		problems.add(r.path+".apiVersion", "", "%q is no apiVersion", cut(apiVersion, maxQuoted))
	}
	r.gvk = gv.WithKind(kind)
	if c.isOwn(r.gvk.GroupKind(), own) {
		problems.add(r.path+".kind", "", "an instance cannot become instances of its own type: there would be no end")
	}
	if _, has := template["status"]; has {
		problems.add(r.path+".status", "", notInTemplates)
	}
	c.policy.checkKind(r, problems)
	path := r.path + ".metadata"
	metadata, is := template["metadata"].(map[string]any)
	if !is {
		problems.add(path, "", "has to be an object with a name")
		return
	}
	if _, has := metadata["generateName"]; has {
		problems.add(path+".generateName", "", "would make another object each time: give it a name, as ${self.metadata.name}-web")
	} else if name, is := metadata["name"].(string); !is || name == "" {
		problems.add(path+".name", "", "is required, a string, as ${self.metadata.name}-web")
	}
	for _, name := range servers {
		if _, has := metadata[name]; has {
			problems.add(path+"."+name, "", notInTemplates)
		}
	}
	for _, field := range texts {
		checkTexts(metadata[field], path+"."+field, problems)
	}
	c.checkNamespace(metadata, options, r, problems)
}

// texts are the fields of metadata that are maps of strings. With any other value in them nobody can read such a map, and
// whoever adds to it would begin with an empty one.
var texts = []string{"labels", "annotations"}

// checkTexts checks what needs no expression to be known.
func checkTexts(v any, path string, problems *collector) {
	switch v := v.(type) {
	case nil:
	case string:
		if !strings.Contains(v, "${") {
			problems.add(path, "", "has to be a map of strings")
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if _, is := v[key].(string); !is {
				problems.add(child(path, key), "", "has to be a string: put it in quotes")
			}
		}
	default:
		problems.add(path, "", "has to be a map of strings")
	}
}

// checkNamespace finds out whether the objects are in namespaces: as long as that is not known, they are if the instance
// is.
func (c *Compiled) checkNamespace(metadata map[string]any, options Options, r *resource, problems *collector) {
	path := r.path + ".metadata.namespace"
	namespace, has := metadata["namespace"]
	if s, is := namespace.(string); has && (!is || s == "") {
		problems.add(path, "", "has to be a string, and not empty")
	} else if has {
		c.checkNamespaceExpression(s, r, problems)
	}
	r.namespaced = has || c.namespaced
	if options.IsNamespaced == nil {
		return
	}
	namespaced, known := options.IsNamespaced(r.gvk)
	switch {
	case !known:
		return
	case namespaced && !has && !c.namespaced:
		problems.add(path, "", "is required: the instance is in no namespace that a %s could be in", r.gvk.Kind)
	case !namespaced && has:
		problems.add(path, "", "a %s is in no namespace", r.gvk.Kind)
	}
	r.namespaced = namespaced
}

// fixed is a string that has no expressions.
func fixed(template map[string]any, field string, r *resource, problems *collector) string {
	s, is := template[field].(string)
	switch {
	case !is || s == "":
		problems.add(r.path+"."+field, "", "is required, a string")
		return ""
	case strings.Contains(s, "${"):
		problems.add(r.path+"."+field, "", "cannot have expressions: what kinds of objects there are is known before there is an instance")
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
