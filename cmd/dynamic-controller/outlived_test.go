package main

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The platform was killed after an instance had been removed in spite of its finalizer. The objects that the killed
// process has left behind carry the mark of an instance that does not exist. The next process reports them and keeps
// them: anyone who can create an object can forge the mark.
func TestOutlived_ChildrenOfInstancesThatNoLongerExistAreReported(t *testing.T) {
	a := newAPI(t)
	p := startServing(t, a.cluster.Kubeconfig(), localMetrics...)
	a.apply(crews)
	for _, name := range []string{"gone", "here"} {
		a.apply("{apiVersion: GROUP/v1, kind: Crew, metadata: {name: " + name + "}, spec: {}}")
		a.wait("GROUP/v1", "Crew", name, is("Ready", "True"))
	}
	p.wantMetrics("dynamiccontroller_outliving_children 0\n")
	p.kill()

	// The garbage collector deletes the children in the namespace of the instance.
	a.change(a.wait("GROUP/v1", "Crew", "gone", exists), `{"metadata":{"finalizers":null}}`)
	a.delete("GROUP/v1", "Crew", "gone")
	a.waitGone("GROUP/v1", "Crew", "gone")
	roles, role := "rbac.authorization.k8s.io/v1", a.namespace+"-gone"
	p = startServing(t, a.cluster.Kubeconfig(), localMetrics...)
	found := line{Msg: "Found children of an instance that no longer exists"}
	p.waitLog(found)
	if lines := p.logged(found); len(lines) != 1 || lines[0].Objects != "ClusterRole "+role {
		t.Errorf("got the log lines %+v", lines)
	}
	p.wantMetrics("dynamiccontroller_outliving_children 1\n")
	a.wait("GROUP/v1", "Crew", "here", is("Ready", "True"))
	kept, err := a.get(roles, "ClusterRole", role)
	if err != nil || kept.GetDeletionTimestamp() != nil {
		t.Fatalf("got ClusterRole %v, %v", kept, err)
	}

	// An instance that the running process deletes leaves nothing to report, and a child that is found later is reported.
	a.delete("GROUP/v1", "Crew", "here")
	a.waitGone(roles, "ClusterRole", a.namespace+"-here")
	later := kept.DeepCopy()
	later.SetName(role + "-later")
	later.SetResourceVersion("")
	later.SetUID("")
	annotations := later.GetAnnotations()
	annotations["platform.example.com/self"] = role + "-later"
	later.SetAnnotations(annotations)
	clusterRoles := a.admin.Resource(schema.GroupVersionResource{
		Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles",
	})
	if _, err := clusterRoles.Create(t.Context(), later, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.wantMetrics("dynamiccontroller_outliving_children 2\n")
	p.waitLog(line{Msg: found.Msg, Objects: "ClusterRole " + role + "-later"})
	if lines := p.logged(found); len(lines) != 2 {
		t.Errorf("got the log lines %+v", lines)
	}
	a.change(kept, `{"metadata":{"labels":{"platform.example.com/parent":null}}}`)
	a.delete(roles, "ClusterRole", role+"-later")
	p.wantMetrics("dynamiccontroller_outliving_children 0\n")
	a.delete(roles, "ClusterRole", role)
}
