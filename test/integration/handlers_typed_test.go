package integration

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children"
)

// typedPods has empty structs, and values that the API server stores in another form.
func typedPods() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "x"}},
		Spec: corev1.PodSpec{
			Volumes: []corev1.Volume{
				{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
					SizeLimit: ptr.To(resource.MustParse("1024Mi")),
				}}},
				{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			},
			InitContainers: []corev1.Container{{Name: "init", Image: "busybox"}},
			Containers: []corev1.Container{{
				Name: "web", Image: "nginx",
				Ports: []corev1.ContainerPort{
					{ContainerPort: 53, Name: "dns"}, {ContainerPort: 53, Protocol: corev1.ProtocolUDP},
				},
				Env: []corev1.EnvVar{{Name: "EMPTY"}, {Name: "A", Value: "1"}},
				Resources: corev1.ResourceRequirements{
					Limits: corev1.ResourceList{
						corev1.ResourceCPU: resource.MustParse("1000m"), corev1.ResourceMemory: resource.MustParse("1024Mi"),
					},
					Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("0.5")},
				},
				VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
				ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
					Path: "/", Port: intstr.FromString("dns"),
				}}},
			}, {Name: "sidecar", Image: "envoy"}},
			SecurityContext: &corev1.PodSecurityContext{},
			Affinity:        &corev1.Affinity{},
		},
	}
}

func typedChildren() map[schema.GroupVersionKind]runtime.Object {
	meta := metav1.ObjectMeta{Name: "typed", Labels: map[string]string{"a": ""}}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}
	jobPods := typedPods()
	jobPods.Spec.RestartPolicy = corev1.RestartPolicyNever
	backend := networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
		Name: "x", Port: networkingv1.ServiceBackendPort{Number: 80},
	}}
	crd := newCRD("typed.example.com", "typeds", "typed", "Typed", "v1")
	crd.Spec.Versions[0].Schema.OpenAPIV3Schema = &apiextensionsv1.JSONSchemaProps{
		Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": {
			Type: "object", Default: &apiextensionsv1.JSON{Raw: []byte(`{}`)},
			Properties: map[string]apiextensionsv1.JSONSchemaProps{
				"port": {XIntOrString: true}, "size": {Type: "integer", Minimum: ptr.To(0.0), Maximum: ptr.To(1.5)},
			},
		}},
	}
	return map[schema.GroupVersionKind]runtime.Object{
		appsv1.SchemeGroupVersion.WithKind("Deployment"): &appsv1.Deployment{
			ObjectMeta: meta, Spec: appsv1.DeploymentSpec{
				Selector: selector, Template: typedPods(),
				Strategy: appsv1.DeploymentStrategy{RollingUpdate: &appsv1.RollingUpdateDeployment{
					MaxSurge: ptr.To(intstr.FromInt32(0)), MaxUnavailable: ptr.To(intstr.FromString("25%")),
				}},
			},
		},
		appsv1.SchemeGroupVersion.WithKind("StatefulSet"): &appsv1.StatefulSet{
			ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{
				ServiceName: "x", Selector: selector, Template: typedPods(),
				VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{
					ObjectMeta: metav1.ObjectMeta{Name: "claim"},
					Spec: corev1.PersistentVolumeClaimSpec{
						AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
						Resources: corev1.VolumeResourceRequirements{
							Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1024Mi")},
						},
					},
				}},
			},
		},
		batchv1.SchemeGroupVersion.WithKind("Job"): &batchv1.Job{
			ObjectMeta: meta, Spec: batchv1.JobSpec{Template: jobPods},
		},
		corev1.SchemeGroupVersion.WithKind("Service"): &corev1.Service{
			ObjectMeta: meta, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{
				{Name: "http", Port: 80, TargetPort: intstr.FromString("http")}, {Name: "https", Port: 443},
				{Name: "dns", Port: 443, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(53)},
			}},
		},
		autoscalingv2.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler"): &autoscalingv2.HorizontalPodAutoscaler{
			ObjectMeta: meta, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
				ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{
					APIVersion: "apps/v1", Kind: "Deployment", Name: "x",
				}, MaxReplicas: 3,
				Metrics: []autoscalingv2.MetricSpec{{
					Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
						Name: corev1.ResourceCPU, Target: autoscalingv2.MetricTarget{
							Type: autoscalingv2.AverageValueMetricType, AverageValue: ptr.To(resource.MustParse("1000m")),
						},
					},
				}},
				Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: &autoscalingv2.HPAScalingRules{
					StabilizationWindowSeconds: ptr.To(int32(0)),
					Policies: []autoscalingv2.HPAScalingPolicy{
						{Type: autoscalingv2.PodsScalingPolicy, Value: 1, PeriodSeconds: 15},
					},
				}},
			},
		},
		networkingv1.SchemeGroupVersion.WithKind("Ingress"): &networkingv1.Ingress{
			ObjectMeta: meta, Spec: networkingv1.IngressSpec{
				DefaultBackend: &backend, TLS: []networkingv1.IngressTLS{{}},
				Rules: []networkingv1.IngressRule{{Host: "a.example.com", IngressRuleValue: networkingv1.IngressRuleValue{
					HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{
						Path: "/", PathType: ptr.To(networkingv1.PathTypePrefix), Backend: backend,
					}}},
				}}},
			},
		},
		apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"): crd,
	}
}

// An author converts Go structs to unstructured objects. They have nulls, empty structs and an empty status. A
// reconcile of an unchanged child sends no write, and a new Reconciler does not change the child.
func TestHandlers_TypedChildren(t *testing.T) {
	t.Parallel()
	s := newSetting(newHarness(t))
	// The parent of a CustomResourceDefinition is cluster-scoped.
	clusterParents := s.defineKind("ClusterPlatform", apiextensionsv1.ClusterScoped)
	s.mapper, _ = s.mapperOf(s.parents, clusterParents)
	all := typedChildren()
	for gvk := range all {
		s.moreKinds = append(s.moreKinds, children.Kind{GroupKind: gvk.GroupKind()})
	}
	for gvk, object := range all {
		t.Run(gvk.Kind, func(t *testing.T) {
			content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
			s.noError(err)
			child := &unstructured.Unstructured{Object: content}
			child.SetGroupVersionKind(gvk)
			parents, namespace := s.parents, s.namespace
			if gvk.Kind == "CustomResourceDefinition" {
				parents, namespace = clusterParents, ""
				t.Cleanup(func() { s.deleteCRD(child.GetName()) })
			}
			testTypedChild(t, s, parents, namespace, child)
		})
	}
}

func testTypedChild(
	t *testing.T, s *setting, parents schema.GroupVersionResource, namespace string, child *unstructured.Unstructured,
) {
	kind := map[bool]string{true: "ClusterPlatform", false: "Platform"}[namespace == ""]
	parent := s.put(parents, newObject(parents, kind, namespace, strings.ToLower(child.GetKind()), nil))
	id := dynamiccontroller.ObjectIdentifiers{NamespacedKey: cache.MetaObjectToName(parent).String(), GVR: parents}
	mapping, err := s.mapper.RESTMapping(child.GroupVersionKind().GroupKind(), child.GroupVersionKind().Version)
	s.noError(err)
	writes := &writeCounter{}
	client := must(dynamic.NewForConfig(writes.wrap(s.config)))
	reconciler := s.newReconciler(children.Config{Client: client})
	reconcile := func() (sent int64, version string) {
		t.Helper()
		before := writes.Load()
		if _, err := reconciler.Reconcile(t.Context(), id, parent, oneStage(child)); err != nil {
			t.Fatal(err)
		}
		now := s.get(mapping.Resource, namespace, child.GetName())
		return writes.Load() - before, now.GetResourceVersion()
	}
	reconcile()
	// The API server changes the status of a CustomResourceDefinition.
	s.eventually("a reconcile sends no write", func() error {
		if sent, _ := reconcile(); sent > 0 && parents.Resource == "clusterplatforms" {
			return fmt.Errorf("it sent %d", sent)
		} else if sent > 0 {
			t.Fatalf("the second reconcile sent %d writes", sent)
		}
		return nil
	})
	_, version := reconcile()
	parent = s.get(parents, namespace, parent.GetName())
	reconciler = s.newReconciler(children.Config{Client: client})
	for range 2 {
		if _, now := reconcile(); now != version {
			t.Error("a new Reconciler changed the child")
		}
	}
	if sent, _ := reconcile(); sent > 0 {
		t.Errorf("a new Reconciler continues to write: %d requests", sent)
	}
}
