-- As before, and at the end what it lacked: a view can be replaced by one with more columns.

CREATE OR REPLACE VIEW audit_export AS
    SELECT r.id, r.model, r.kind, r.status, r.count, r.received_at, r.applied_at, r.completed_at, r.failed_at,
           r.cancelled_at, r.guarantee, r.repair, r.already_deleted_by,
           extract(epoch FROM r.applied_at - r.received_at)::double precision AS seconds_to_applied,
           extract(epoch FROM r.completed_at - r.received_at)::double precision AS seconds_to_completed,
           v.id AS batch_id, v.committed_at, v.number_before AS model_version_before, v.number AS model_version_after,
           v.weights_sha256_before, v.weights_sha256 AS weights_sha256_after, b.rank_before, v.rank AS rank_after,
           v.directions_removed, v.live_nodes, a.deleted, a.injected_norm_before, a.injected_norm_after,
           b.lost_direction_norm_before, b.lost_direction_norm_after, a.channel_norm_before, a.channel_norm_after,
           v.span_residual, b.weight_change, v.distance_bound_before,
           CASE WHEN e.id IS NULL THEN v.distance_bound_after ELSE e.distance_bound_after END AS distance_bound_after,
           v.distance_bound_before_relative,
           CASE WHEN e.id IS NULL THEN v.distance_bound_after_relative ELSE e.distance_bound_after_relative END
               AS distance_bound_after_relative,
           e.repair_iterations, e.repair_weight_change, e.number AS repair_version,
           e.weights_sha256 AS repair_weights_sha256, b.coefficient_residual, b.factor_method, v.device,
           b.distance_bound_start_relative, e.repair_tolerance, b.factor_age_s, v.publication_epsilon, v.publication_delta,
           v.publications_planned, v.publication_mu, coalesce(e.commitment_salt, v.commitment_salt) AS commitment_salt
    FROM requests r
    LEFT JOIN request_audits a ON a.request_id = r.id AND r.status IN ('applied', 'completed')
    LEFT JOIN batches b ON b.id = a.batch_id LEFT JOIN versions v ON v.id = b.id
    LEFT JOIN versions e ON e.model = v.model AND e.number = v.repair_version;
