// Package metrics exports the metrics of a DynamicController to Prometheus. Only served types have series.
//
//	dynamic_controller_reconciles_total{group,version,resource,outcome}   handler calls, by outcome
//	dynamic_controller_reconcile_duration_seconds{group,version,resource} duration of handler calls
//	dynamic_controller_objects{group,version,resource}                    objects in the cache
//	dynamic_controller_cache_bytes{group,version,resource}                approximate memory used by the cache
//	dynamic_controller_queue_items{group,version,resource,lane}           waiting objects: live, background, delayed
//	dynamic_controller_queue_oldest_seconds{group,version,resource}       waiting time of the head of the queue
//	dynamic_controller_handlers_running{group,version,resource}           running handlers
//	dynamic_controller_objects_failing{group,version,resource}            objects that will be retried
//	dynamic_controller_objects_parked{group,version,resource}             objects that wait for their next event
//	dynamic_controller_type_state{group,version,resource,state}           1 for the current state of the type
package metrics
