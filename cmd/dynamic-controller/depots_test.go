package main

import (
	"slices"
	"strings"
)

// depots creates one child in the namespace of the instance and one in another namespace, so that the instances have
// the platform's finalizer.
const depots = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: depots.GROUP}
spec:
  deletionPolicy: Delete
  type:
    group: GROUP
    version: v1
    kind: Depot
    schema: {type: object, properties: {spec: {type: object, properties: {text: {type: string}}}}}
  resources:
    - id: near
      template:
        apiVersion: v1
        kind: Secret
        metadata: {name: "${self.metadata.name}-near"}
        stringData: {text: "${self.spec.text}"}
    - id: far
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-far", namespace: FAR}
        data: {text: "${self.spec.text}"}
`

const depot = "{apiVersion: GROUP/v1, kind: Depot, metadata: {name: d}, spec: {text: a}}"

// identities contains the UID and the resourceVersion of objects by kind and name.
type identities map[string][2]string

// upgraded is the state of a test that replaces one version with another.
type upgraded struct {
	*api
	far string
}

// identities returns the identities of the children, the instances and the types of the test.
func (u *upgraded) identities() identities {
	u.Helper()
	ids := identities{}
	for _, object := range [][3]string{
		{"v1", "ConfigMap", "flowers-page"}, {"v1", "ConfigMap", "flowers-route"}, {"v1", "Service", "flowers"},
		{"v1", "Secret", "d-near"}, {"v1", "ConfigMap", u.far + "/d-far"},
		{"GROUP/v1", "Website", "flowers"}, {"GROUP/v1", "Depot", "d"},
		{typeVersion, typeKind, "websites." + u.group}, {typeVersion, typeKind, "depots." + u.group},
	} {
		now := u.wait(object[0], object[1], object[2], exists)
		ids[object[1]+" "+object[2]] = [2]string{string(now.GetUID()), now.GetResourceVersion()}
	}
	return ids
}

// checkKept fails the test if an object was created again, and logs which objects were written.
func (u *upgraded) checkKept(before identities, what string) {
	u.Helper()
	var written []string
	for name, now := range u.identities() {
		switch was := before[name]; {
		case now[0] != was[0]:
			u.Errorf("%s: %s was created again", what, name)
		case now[1] != was[1]:
			written = append(written, name)
		}
	}
	slices.Sort(written)
	u.Logf("%s: written: %s", what, strings.Join(written, ", "))
}

func (u *upgraded) waitReady() {
	u.Helper()
	u.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	u.wait("GROUP/v1", "Depot", "d", is("Ready", "True"))
}
