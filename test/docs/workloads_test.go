package docs

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

var inNamespace = regexp.MustCompile(` -n (\S+)`)

// startFakeControllersIfNeeded starts the controllers of a namespace when a command first waits until objects are
// ready. Earlier commands then show objects that are waiting.
func (u *user) startFakeControllersIfNeeded(c command) {
	u.Helper()
	namespace := inNamespace.FindStringSubmatch(c.text)
	if u.client == nil && namespace != nil && strings.Contains(c.text, "--for=condition=Ready ") {
		u.startFakeControllers(namespace[1])
	}
}

// startFakeControllers starts controllers that make the workloads of a namespace ready. They also remove deleted
// volumes. The control plane has no controllers for them.
func (u *user) startFakeControllers(namespace string) {
	u.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", u.kubeconfig)
	if err != nil {
		u.Fatal(err)
	}
	if u.client, err = kubernetes.NewForConfig(config); err != nil {
		u.Fatal(err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(u.client, 0, informers.WithNamespace(namespace))
	for _, informer := range []cache.SharedInformer{
		factory.Apps().V1().Deployments().Informer(),
		factory.Apps().V1().StatefulSets().Informer(),
		factory.Core().V1().PersistentVolumeClaims().Informer(),
	} {
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    u.reconcile,
			UpdateFunc: func(_, object any) { u.reconcile(object) },
		})
		if err != nil {
			u.Fatal(err)
		}
	}
	factory.Start(u.Context().Done())
	u.Cleanup(factory.Shutdown)
}

// reconcile does the work of the object's controller.
func (u *user) reconcile(object any) {
	var err error
	switch object := object.(type) {
	case *appsv1.Deployment:
		_, err = u.client.AppsV1().Deployments(object.Namespace).Patch(u.Context(), object.Name, types.MergePatchType,
			available(object.Generation, *object.Spec.Replicas), metav1.PatchOptions{}, "status")
	case *appsv1.StatefulSet:
		_, err = u.client.AppsV1().StatefulSets(object.Namespace).Patch(u.Context(), object.Name, types.MergePatchType,
			available(object.Generation, *object.Spec.Replicas), metav1.PatchOptions{}, "status")
	case *corev1.PersistentVolumeClaim:
		if object.DeletionTimestamp != nil {
			_, err = u.client.CoreV1().PersistentVolumeClaims(object.Namespace).Patch(u.Context(), object.Name,
				types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		}
	}
	if err != nil && !apierrors.IsNotFound(err) && context.Cause(u.Context()) == nil {
		u.Error(err)
	}
}

// available returns a patch that makes all replicas available.
func available(generation int64, replicas int32) []byte {
	return fmt.Appendf(nil, `{"status":{"observedGeneration":%d,"replicas":%[2]d,"updatedReplicas":%[2]d,
		"readyReplicas":%[2]d,"availableReplicas":%[2]d}}`, generation, replicas)
}
