package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

// scene contains a platform with all permissions, an author, a tenant, and objects that belong to others. Blueprints
// run as ServiceAccounts.
type scene struct {
	*api
	author, tenant *api
	start          func() // starts another process of the platform
	processes      *[]*process
	users          *impersonations
	other          string // a namespace in which the tenant has no permissions
	attack
	name     string                     // of the instance and of the ServiceAccount
	instance *unstructured.Unstructured // set when the attack creates it
}

// checkRoles checks that the author and the tenant lack permissions that would make the other tests meaningless.
func (s *scene) checkRoles(t *testing.T) {
	instance := "{apiVersion: GROUP/v1, kind: First, metadata: {name: first}}"
	consent := "{apiVersion: v1, kind: ServiceAccount, metadata: {name: default, annotations: {a: b}}}"
	for who, request := range map[string]func() error{
		"author reads a Secret": func() error { _, err := s.author.get("v1", "Secret", "vault"); return err },
		"author creates an instance": func() error {
			_, err := s.author.tryApply(instance)
			return err
		},
		"author consents":        func() error { _, err := s.author.tryApply(consent); return err },
		"tenant consents":        func() error { _, err := s.tenant.tryApply(consent); return err },
		"tenant reads a Secret":  func() error { _, err := s.tenant.get("v1", "Secret", "vault"); return err },
		"tenant reads elsewhere": func() error { _, err := s.tenant.get("v1", "ConfigMap", s.other+"/notes"); return err },
		"tenant creates a Blueprint": func() error {
			_, err := s.tenant.tryApply(making("Second", configMap+namedChild+"}"))
			return err
		},
	} {
		if err := request(); !apierrors.IsForbidden(err) {
			t.Errorf("%s: got %v, want Forbidden", who, err)
		}
	}
}

// expand replaces the placeholders of the namespaces.
func (s *scene) expand(text string) string {
	return strings.NewReplacer("NAMESPACE", s.namespace, "OTHER", s.other, "GROUP", s.group).Replace(text)
}

func (s *scene) expandAll(words []string) (expanded []string) {
	for _, word := range words {
		expanded = append(expanded, s.expand(word))
	}
	return expanded
}

// with returns a scene for one attack, with its own API group.
func (s *scene) with(t *testing.T, attack attack) *scene {
	t.Helper()
	own := *s
	own.attack, own.name = attack, strings.ToLower(attack.kind)
	admin, author, tenant := *s.api, *s.author, *s.tenant
	for _, each := range []*api{&admin, &author, &tenant} {
		each.T, each.group = t, own.name+"."+s.group
	}
	own.api, own.author, own.tenant = &admin, &author, &tenant
	own.grant(own.namespace, metav1.NamespaceDefault, own.namespace+"-tenant", rule("*", own.group, "*"))
	return &own
}

// run carries out the attack and checks the result.
func (s *scene) run() {
	s.Helper()
	s.serviceAccount(s.namespace, s.name, s.may...)
	s.consent(s.namespace, s.name, s.name+"s."+s.group)
	text := changed(making(s.kind, s.template, append(s.fields, "  serviceAccountName: "+s.name)...), s.edit...)
	if s.refused != "" {
		_, err := s.author.tryApply(s.expand(text))
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), s.refused) {
			s.Errorf("got error %v, want %q", err, s.refused)
		}
		return
	}
	s.author.apply(s.expand(text))
	if s.rejected != nil {
		s.waitBlueprint(s.name+"s", is("Accepted", "False", s.expandAll(s.rejected)...), is("Serving", "False"))
		s.checkLeaks()
		return
	}
	s.waitBlueprint(s.name+"s", is("Accepted", "True"), is("Serving", "True"))
	s.applyInstance(s.spec)
	if s.then != nil {
		s.then(s)
	}
	if s.want != nil {
		s.tenant.wait("GROUP/v1", s.kind, s.name, is("Ready", "False", s.expandAll(s.want)...))
	} else {
		s.tenant.wait("GROUP/v1", s.kind, s.name, is("Ready", "True"))
	}
	for _, object := range s.absent {
		fields := strings.Fields(s.expand(object))
		if obj, err := s.get(fields[0], fields[1], fields[2]); !apierrors.IsNotFound(err) {
			s.Errorf("%s is %v, %v", object, obj, err)
		}
	}
	s.checkLeaks()
	if s.check != nil {
		s.check(s)
	}
}

// applyInstance creates or changes the instance as the tenant.
func (s *scene) applyInstance(spec string) {
	s.Helper()
	if spec == "" {
		spec = "{}"
	}
	s.instance = s.tenant.apply(fmt.Sprintf("{apiVersion: GROUP/v1, kind: %s, metadata: {name: %s}, spec: %s}", s.kind,
		s.name, s.expand(spec)))
}

// marked returns metadata that marks an object as a child of the instance. In the instance's namespace, the mark is an
// owner reference.
func (s *scene) marked(namespace, name, more string) string {
	uid := s.instance.GetUID()
	label, record := markOf(s.instance)
	if namespace == s.namespace {
		label = string(uid)
	}
	metadata := fmt.Sprintf(`name: %s, namespace: %s, labels: {platform.example.com/parent: %s}, annotations: {
		platform.example.com/resource: child, platform.example.com/instance: %s/%s, platform.example.com/self: %s/%[1]s,
		platform.example.com/parent: '%[7]s'}`, name, namespace, label, s.namespace, s.name, namespace, record)
	if namespace == s.namespace {
		metadata += fmt.Sprintf(", ownerReferences: [{apiVersion: GROUP/v1, kind: %s, name: %s, uid: %s, controller: true, "+
			"blockOwnerDeletion: true}]", s.kind, s.name, uid)
	}
	return "metadata: {" + metadata + more + "}"
}

// markOf returns the label and the annotation platform.example.com/parent of children outside the instance's namespace.
func markOf(instance *unstructured.Unstructured) (label, record string) {
	requirements, _ := instances.ChildSelector(instance).Requirements()
	for _, value := range requirements[0].ValuesUnsorted() {
		if value != string(instance.GetUID()) {
			label = value
		}
	}
	return label, fmt.Sprintf(`{"parent":"%s/%s/%s","uid":"%s"}`, instance.GroupVersionKind().GroupKind(),
		instance.GetNamespace(), instance.GetName(), instance.GetUID())
}

// revokeRead revokes the permission to read a child after the ServiceAccount has created it. The next process has the
// current child in its cache.
func (s *scene) revokeRead() {
	s.Helper()
	revoke := s.grant(s.namespace, s.namespace, s.name, rule(writeChildren, "", "configmaps"))
	s.tenant.wait("GROUP/v1", s.kind, s.name, is("Ready", "True"))
	(*s.processes)[len(*s.processes)-1].kill()
	revoke()
	s.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: " + s.name + "-leak}, data: {text: " + foreignText + "}}")
	s.start()
}

// revokeReference revokes the permission to read a referenced object after the status has shown it.
func (s *scene) revokeReference() {
	s.Helper()
	revoke := s.grant(s.namespace, s.namespace, s.name, rule("get", "", "configmaps", s.name+"-leak"))
	apply := func(text string) {
		s.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: " + s.name + "-leak}, data: {text: " + text + "}}")
	}
	apply("public")
	s.tenant.wait("GROUP/v1", s.kind, s.name, all(is("Ready", "True"), has("public", "status", "text")))
	revoke()
	apply(foreignText)
}

// checkService checks that someone else's Service has not changed.
func (s *scene) checkService() {
	s.Helper()
	s.wait("v1", "Service", "theirs", func(obj *unstructured.Unstructured) error {
		ports, _, _ := unstructured.NestedSlice(obj.Object, "spec", "ports")
		if len(ports) != 1 || ports[0].(map[string]any)["port"] != int64(80) || len(obj.GetOwnerReferences()) > 0 {
			return fmt.Errorf("someone else's Service has changed: %v", obj)
		}
		return nil
	})
}

// dropItem removes the item with the name of someone else's Service, and waits until the collection is complete.
func (s *scene) dropItem() {
	s.Helper()
	s.applyInstance("{a: grabber-first, b: grabber-own}")
	s.tenant.wait("GROUP/v1", s.kind, s.name, is("Ready", "True", "with 2 objects"))
}

// deleteWithUnreadableChild deletes the instance in the foreground. The ServiceAccount cannot read the name and the
// finalizer of a child.
func (s *scene) deleteWithUnreadableChild() {
	s.Helper()
	s.tenant.wait("GROUP/v1", s.kind, s.name, is("Ready", "False", "Forbidden", `cannot patch resource "secrets"`))
	s.apply("{apiVersion: v1, kind: Secret, " +
		s.marked(s.namespace, foreignText, ", finalizers: [example.com/"+foreignText+"]") + "}")
	if err := s.tenant.client(s.instance).Delete(s.Context(), s.name,
		metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)}); err != nil {
		s.Fatal(err)
	}
}

// manipulateInventory makes the platform look for children among other users' objects.
func (s *scene) manipulateInventory() {
	s.Helper()
	s.tenant.wait("GROUP/v1", s.kind, s.name, is("Ready", "True"))
	for _, kind := range []string{"Secret", "ConfigMap"} {
		s.apply("{apiVersion: v1, kind: " + kind + ", " + s.marked(s.other, "marked", "") + "}")
	}
	s.tenant.apply(s.expand(fmt.Sprintf(`{apiVersion: GROUP/v1, kind: %s, metadata: {name: %s,
		finalizers: [platform.example.com/children], annotations: {platform.example.com/inventory:
		"ConfigMap=v1/configmaps:0@OTHER,Secret=v1/secrets:0@OTHER,Namespace=v1/namespaces:0"}}, spec: %s}`,
		s.kind, s.name, s.spec)))
}

// createFakeChild creates an object that becomes the child when the instance changes. The instance is paused so that
// the platform does not prune the object first.
func (s *scene) createFakeChild() {
	s.Helper()
	s.tenant.wait("GROUP/v1", s.kind, s.name, is("Ready", "True"))
	s.tenant.annotate("GROUP/v1", s.kind, s.name, "platform.example.com/paused", "true")
	s.tenant.wait("GROUP/v1", s.kind, s.name, is("Paused", "True"))
	s.tenant.apply("{apiVersion: v1, kind: ConfigMap, " + s.marked(s.namespace, "fake", "") + ", data: {text: weeds}}")
	s.applyInstance("{a: fake}")
	s.tenant.annotate("GROUP/v1", s.kind, s.name, "platform.example.com/paused", "false")
}

// checkLeaks checks that neither the log nor other objects contain the content of other users' objects.
func (s *scene) checkLeaks() {
	s.Helper()
	check := func(where string, content any) {
		s.Helper()
		text, err := json.Marshal(content)
		if err != nil {
			s.Fatal(err)
		}
		for _, secret := range []string{foreignText, base64.StdEncoding.EncodeToString([]byte(foreignText))} {
			if strings.Contains(string(text), secret) {
				s.Errorf("%s: contains the content of another user's object: %s", where, text)
			}
		}
	}
	for _, p := range *s.processes {
		check("the log", p.output())
	}
	for _, gvr := range []schema.GroupVersionResource{
		blueprint.GroupVersionResource, {Group: s.group, Version: "v1", Resource: s.name + "s"},
		{Group: "apps", Version: "v1", Resource: "controllerrevisions"}, {Version: "v1", Resource: "events"},
		{Version: "v1", Resource: "configmaps"}, {Version: "v1", Resource: "services"},
	} {
		list, err := s.dynamic.Resource(gvr).List(s.Context(), metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			continue // the Blueprint was rejected
		}
		if err != nil {
			s.Fatal(err)
		}
		for _, item := range list.Items {
			name := item.GetName() // earlier runs leave such objects in other namespaces
			if name != "notes" && name != "theirs" && !strings.HasSuffix(name, "-leak") {
				check(gvr.Resource+" "+item.GetNamespace()+"/"+name, item.Object)
			}
		}
	}
}
