package main

import (
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// kits creates children of every kind: in the namespace of the instance and in another one, cluster-scoped, retained in
// both namespaces, adopted, in a collection, in a later stage, from another object, and an instance with children of
// its own.
const kits = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: kits.GROUP}
spec:
  deletionPolicy: Delete
  type:
    group: GROUP
    version: v1
    kind: Kit
    schema: {type: object, properties: {spec: {type: object, properties: {text: {type: string}}}}}
  resources:
    - id: settings
      externalRef: {apiVersion: v1, kind: ConfigMap, metadata: {name: settings}}
    - id: near
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-near"}
        data: {text: "${self.spec.text}", settings: "${settings.data.text}"}
    - id: far
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-kit", namespace: FAR}
        data: {text: "${self.spec.text}"}
    - id: role
      template:
        apiVersion: rbac.authorization.k8s.io/v1
        kind: ClusterRole
        metadata: {name: "${self.metadata.namespace}-${self.metadata.name}", labels: {text: "${self.spec.text}"}}
    - id: kept
      deletionPolicy: Retain
      template:
        apiVersion: v1
        kind: Secret
        metadata: {name: "${self.metadata.name}-kept"}
        stringData: {text: "${self.spec.text}"}
    - id: keptFar
      deletionPolicy: Retain
      template:
        apiVersion: v1
        kind: Secret
        metadata: {name: "${self.metadata.name}-kept", namespace: FAR}
        stringData: {text: "${self.spec.text}"}
    - id: adopted
      adopt: true
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-adopted"}
        data: {text: "${self.spec.text}"}
    - id: pages
      forEach: [{page: "${['a', 'b', 'c']}"}]
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-${page}"}
        data: {text: "${self.spec.text}"}
    - id: later
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-later", namespace: FAR}
        data: {text: "${near.data.text}", uid: "${near.metadata.uid}"}
    - id: depot
      template:
        apiVersion: GROUP/v1
        kind: Depot
        metadata: {name: "${self.metadata.name}-depot"}
        spec: {text: "${self.spec.text}"}
`

// replacement is a test that replaces one version of the platform with another.
type replacement struct {
	*api
	far  string
	kits []string // the names of the instances
}

func (r *replacement) create(name string) {
	r.Helper()
	r.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: " + name + "-adopted}, data: {text: before}}")
	r.set(name, "a")
	r.kits = append(r.kits, name)
}

func (r *replacement) set(name, text string) {
	r.Helper()
	r.apply(fmt.Sprintf("{apiVersion: GROUP/v1, kind: Kit, metadata: {name: %s}, spec: {text: %s}}", name, text))
}

// edit changes all instances, and waits until the change has reached the children.
func (r *replacement) edit(text string) {
	r.Helper()
	for _, name := range r.kits {
		r.set(name, text)
	}
	for _, name := range r.kits {
		for _, child := range []string{r.far + "/" + name + "-kit", r.far + "/" + name + "-later", name + "-adopted",
			name + "-near", name + "-a", r.far + "/" + name + "-depot-far"} {
			r.wait("v1", "ConfigMap", child, has(text, "data", "text"))
		}
	}
	r.waitReady()
}

func (r *replacement) waitReady() {
	r.Helper()
	for _, name := range r.kits {
		r.wait("GROUP/v1", "Kit", name, is("Ready", "True"))
		r.wait("GROUP/v1", "Depot", name+"-depot", is("Ready", "True"))
	}
}

// children returns the UIDs of all objects that a version of the platform has created, by kind, namespace and name.
func (r *replacement) children() map[string]types.UID {
	r.Helper()
	uids := map[string]types.UID{}
	add := func(kind string, object metav1.Object) {
		name := object.GetName()
		if object.GetLabels()["platform.example.com/parent"] != "" || strings.HasPrefix(name, "children-of-") {
			uids[kind+" "+object.GetNamespace()+"/"+name] = object.GetUID()
		}
	}
	for _, namespace := range []string{r.namespace, r.far} {
		configMaps, err1 := r.kube.CoreV1().ConfigMaps(namespace).List(r.Context(), metav1.ListOptions{})
		secrets, err2 := r.kube.CoreV1().Secrets(namespace).List(r.Context(), metav1.ListOptions{})
		if err1 != nil || err2 != nil {
			r.Fatal(err1, err2)
		}
		for i := range configMaps.Items {
			add("ConfigMap", &configMaps.Items[i])
		}
		for i := range secrets.Items {
			add("Secret", &secrets.Items[i])
		}
	}
	roles, err := r.kube.RbacV1().ClusterRoles().List(r.Context(), metav1.ListOptions{})
	if err != nil {
		r.Fatal(err)
	}
	for i := range roles.Items {
		if strings.HasPrefix(roles.Items[i].Name, r.namespace+"-") {
			add("ClusterRole", &roles.Items[i])
		}
	}
	return uids
}

// start starts a version of the platform, and waits until it leads and everything is Ready.
func (r *replacement) start(program string) *process {
	r.Helper()
	p := startCommand(r.T, exec.Command(program, replicaArgs(r.T, r.cluster.Kubeconfig())...))
	p.waitLog(line{Msg: "Started leading"})
	for _, name := range []string{"kits", "depots"} {
		r.waitBlueprint(name, is("Accepted", "True"), is("Serving", "True"), is("Progressing", "True", "RolloutComplete"))
	}
	r.waitReady()
	return p
}

// replace replaces the running version with another one, changes all instances, and checks that no child is deleted or
// created again.
func (r *replacement) replace(running *process, program, text string) *process {
	r.Helper()
	before := r.children()
	running.stop(syscall.SIGTERM)
	p := r.start(program)
	r.edit(text)
	after := r.children()
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if after[name] != before[name] {
			r.Errorf("%s: %s had UID %s, and now has %q", text, name, before[name], after[name])
		}
	}
	if len(after) != len(before) {
		r.Errorf("%s: there were %d children, now %d", text, len(before), len(after))
	}
	return p
}

// deleteKit deletes an instance, and checks that nothing but its retained children is left.
func (r *replacement) deleteKit(name string) {
	r.Helper()
	r.delete("GROUP/v1", "Kit", name)
	r.waitGone("GROUP/v1", "Kit", name)
	r.kits = slices.DeleteFunc(r.kits, func(kit string) bool { return kit == name })
	eventually(r.T, func() error {
		for child := range r.children() {
			if isOf(child, name) && !strings.HasSuffix(child, "-kept") {
				return fmt.Errorf("%s of %s is left", child, name)
			}
		}
		return nil
	})
	for _, namespace := range []string{r.namespace, r.far} {
		r.wait("v1", "Secret", namespace+"/"+name+"-kept", exists)
	}
}

// isOf reports whether a child belongs to an instance, according to its name.
func isOf(child, instance string) bool {
	return strings.Contains(child, "/"+instance+"-") || strings.HasSuffix(child, "-"+instance)
}

// Instances with children of every kind survive an upgrade from the previous version, a rollback and another upgrade.
// Each version can delete what either of them has written.
func TestUpgrade_ChildrenOfEveryKind(t *testing.T) {
	previous := buildPrevious(t)
	a := newAPI(t)
	r := &replacement{api: a, far: a.addNamespace(a.namespace + "-far")}
	a.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {text: x}}")

	p := startCommand(t, exec.Command(previous, replicaArgs(t, a.cluster.Kubeconfig())...))
	p.waitLog(line{Msg: "Started leading"})
	a.apply(strings.ReplaceAll(depots, "FAR", r.far))
	a.waitBlueprint("depots", is("Accepted", "True"), is("Serving", "True"))
	a.apply(strings.ReplaceAll(kits, "FAR", r.far))
	for _, name := range []string{"k1", "k2", "k3"} {
		r.create(name)
	}
	r.edit("old")
	if n := len(r.children()); n < 3*12 {
		t.Fatalf("there are only %d children", n)
	}

	p = r.replace(p, binary, "upgraded")
	r.deleteKit("k1")
	r.create("k4")
	r.create("k5")
	r.edit("new")

	p = r.replace(p, previous, "rolledback")
	r.deleteKit("k2")
	r.deleteKit("k4")

	r.replace(p, binary, "again")
	r.deleteKit("k3")
	a.delete(blueprintVersion, "Blueprint", "kits."+a.group)
	a.waitGone(blueprintVersion, "Blueprint", "kits."+a.group)
	eventually(t, func() error {
		for child := range r.children() {
			if !strings.HasSuffix(child, "-kept") {
				return fmt.Errorf("%s is left", child)
			}
		}
		return nil
	})
}
