-- How much is left to train on, and how well the validation and test nodes that are left are predicted: the accuracy, or
-- R^2 of a regression. Null for earlier versions, and without such nodes.

ALTER TABLE versions ADD COLUMN training_nodes integer CHECK (training_nodes >= 0),
    ADD COLUMN score_validation double precision CHECK (score_validation <= 1),
    ADD COLUMN score_test double precision CHECK (score_test <= 1);
